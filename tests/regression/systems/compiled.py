"""Rows of compiled."""

from __future__ import annotations

SYSTEMS = []
