"""Recorded readings that a later run must match. Pure, but for `extension`, which is syrupy's.

Importing this package imports neither syrupy nor torch.
"""

from pytest_shardcheck.snapshots.compare import Mismatch, compare
from pytest_shardcheck.snapshots.document import Document, read
from pytest_shardcheck.snapshots.fields import Rules, parse_rules
from pytest_shardcheck.snapshots.figures import figures_of, plain_value
from pytest_shardcheck.snapshots.merge import merge
from pytest_shardcheck.snapshots.table import explain

__all__ = [
    "Document",
    "Mismatch",
    "Rules",
    "compare",
    "explain",
    "figures_of",
    "merge",
    "parse_rules",
    "plain_value",
    "read",
]
