"""Rows of checkpointing."""

from __future__ import annotations

SYSTEMS = []
