"""The words that every room shares: plain data, units and errors. No torch here."""

from pytest_shardcheck.vocabulary.collectives import OPERATIONS, Call, Volume
from pytest_shardcheck.vocabulary.errors import (
    DeadRankError,
    HarnessError,
    HungRankError,
    NoValueError,
    RankFailedError,
    ShardcheckError,
    UnmetExpectationError,
    UsageError,
)
from pytest_shardcheck.vocabulary.frameworks import Frameworks, Held, NoFrameworks
from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.readings import (
    CATEGORIES,
    PHASES,
    SCHEMA_VERSION,
    CollectivesReading,
    Crossing,
    LiveBytes,
    MemoryReading,
    PhaseReading,
    Reading,
    SavedBytes,
    SavedReading,
    StateBytes,
    TensorRecord,
)
from pytest_shardcheck.vocabulary.specs import WorldSpec, default_backend
from pytest_shardcheck.vocabulary.units import (
    format_bytes,
    format_ceiling,
    format_size,
    parse_size,
)
from pytest_shardcheck.vocabulary.verdicts import Breakdown, Kind, RankFigure, Unit, Verdict

__all__ = [
    "CATEGORIES",
    "OPERATIONS",
    "PHASES",
    "SCHEMA_VERSION",
    "Breakdown",
    "Call",
    "CollectivesReading",
    "Crossing",
    "DeadRankError",
    "Frameworks",
    "HarnessError",
    "Held",
    "HungRankError",
    "Kind",
    "LiveBytes",
    "MemoryReading",
    "NoFrameworks",
    "NoValueError",
    "PhaseReading",
    "RankFailedError",
    "RankFigure",
    "Reading",
    "SavedBytes",
    "SavedReading",
    "ShardcheckError",
    "StateBytes",
    "TensorRecord",
    "Unit",
    "UnmetExpectationError",
    "UsageError",
    "Verdict",
    "Volume",
    "WorldSpec",
    "default_backend",
    "fold_numbers",
    "fold_ranks",
    "format_bytes",
    "format_ceiling",
    "format_size",
    "parse_size",
]
