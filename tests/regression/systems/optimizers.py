"""Rows of optimizers."""

from __future__ import annotations

SYSTEMS = []
