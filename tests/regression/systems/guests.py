"""Rows of guests that own the loop."""

from __future__ import annotations

SYSTEMS = []
