"""Rows of pipelines."""

from __future__ import annotations

SYSTEMS = []
