"""The words that every room shares: plain data, units and errors. No torch here."""

from pytest_shardcheck.vocabulary.errors import (
    DeadRankError,
    HarnessError,
    HungRankError,
    RankFailedError,
    ShardcheckError,
    UnmetExpectationError,
    UsageError,
)
from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.readings import (
    CATEGORIES,
    SCHEMA_VERSION,
    MemoryReading,
    Reading,
    StateBytes,
)
from pytest_shardcheck.vocabulary.specs import WorldSpec, default_backend
from pytest_shardcheck.vocabulary.units import (
    format_bytes,
    format_ceiling,
    format_size,
    parse_size,
)
from pytest_shardcheck.vocabulary.verdicts import Kind, RankFigure, Verdict

__all__ = [
    "CATEGORIES",
    "SCHEMA_VERSION",
    "DeadRankError",
    "HarnessError",
    "HungRankError",
    "Kind",
    "MemoryReading",
    "RankFailedError",
    "RankFigure",
    "Reading",
    "ShardcheckError",
    "StateBytes",
    "UnmetExpectationError",
    "UsageError",
    "Verdict",
    "WorldSpec",
    "default_backend",
    "fold_numbers",
    "fold_ranks",
    "format_bytes",
    "format_ceiling",
    "format_size",
    "parse_size",
]
