"""Verdicts and readings → text. Pure functions, no torch here."""

from pytest_shardcheck.reports.table import WorldRow, table
from pytest_shardcheck.reports.verdicts import explain

__all__ = ["WorldRow", "explain", "table"]
