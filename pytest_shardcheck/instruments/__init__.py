"""Measurements of one rank: they measure and return, and never print, judge or write files."""

from __future__ import annotations

from .meter import Meter
from .regions import Measurement
from .state import StateAtRest, Watched, measure_state

__all__ = ["Measurement", "Meter", "StateAtRest", "Watched", "measure_state"]
