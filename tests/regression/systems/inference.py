"""Rows of inference."""

from __future__ import annotations

SYSTEMS = []
