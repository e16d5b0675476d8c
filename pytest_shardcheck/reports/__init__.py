"""Verdicts and readings → text. Pure functions, no torch here."""

from pytest_shardcheck.reports.table import table
from pytest_shardcheck.reports.verdicts import explain

__all__ = ["explain", "table"]
