"""Rows of parallel."""

from __future__ import annotations

SYSTEMS = []
