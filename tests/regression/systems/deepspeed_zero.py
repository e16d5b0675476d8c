"""Rows of deepspeed_zero."""

from __future__ import annotations

SYSTEMS = []
