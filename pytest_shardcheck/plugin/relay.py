"""Pass on to the session what the ranks printed, logged, warned of and recorded, each once."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import pytest

from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.worlds.outcome import Phase
from pytest_shardcheck.worlds.world import World


def relay(item: pytest.Item, world: World, when: Phase) -> None:
    """Relay what came with a phase; the exit phase has what was never reported."""
    if when != "exit":
        _sections(item, world, when)
        _properties(item, world, when)
    _lost_output(item, world)


def _sections(item: pytest.Item, world: World, when: Phase) -> None:
    """Add each captured text under the ranks that produced it; equal ones are folded."""
    texts: dict[tuple[str, str], list[int]] = {}
    for state in world.states:
        message = state.reports.get(when)
        messages = ([message] if message else []) + (state.subtests if when == "call" else [])
        for title, text in (part for m in messages for part in m["report"].get("sections", [])):
            match = re.fullmatch(rf"Captured (\w+) {when}", title)
            if match:
                texts.setdefault((match[1], text), []).append(state.rank)
    for (stream, text), ranks in texts.items():
        item.add_report_section(f"{when} ({fold_ranks(ranks)})", stream, text)


def _lost_output(item: pytest.Item, world: World) -> None:
    """Add what dead ranks had printed and never reported: gloo's last words are there."""
    texts: dict[tuple[str, str, str], list[int]] = {}
    for state in world.states:
        if state.exit is not None and not state.complete:
            for stream, text in world.take_lost_output(state):
                texts.setdefault((state.phase, stream, text), []).append(state.rank)
    for (phase, stream, text), ranks in texts.items():
        item.add_report_section(f"{phase} ({fold_ranks(ranks)}, unreported)", stream, text)


def _properties(item: pytest.Item, world: World, when: Phase) -> None:
    """Keep the properties that ranks recorded; one that differs says of which rank it is."""
    recorded: dict[tuple[str, str], tuple[Any, list[int]]] = {}
    for state in world.states:
        message = state.reports.get(when)
        for name, value in message["report"].get("user_properties", []) if message else []:
            recorded.setdefault((name, repr(value)), (value, []))[1].append(state.rank)
    names = [name for name, _ in recorded]
    known = {(name, repr(value)) for name, value in item.user_properties}
    for (name, _), (value, ranks) in recorded.items():
        label = name if names.count(name) == 1 else f"{name} ({fold_ranks(ranks)})"
        if (label, repr(value)) not in known:
            item.user_properties.append((label, value))


def relay_warnings(item: pytest.Item, world: World) -> None:
    """Re-issue the ranks' warnings in the session's summary, equal ones once with their ranks.

    pytest records them when an item's protocol has ended, so this comes when the world has.
    """
    ranks_of: dict[tuple[str, ...], list[int]] = {}
    for state in world.states:
        for message in state.warnings:
            key = (
                message["text"],
                *message["category"],
                message["filename"],
                str(message["lineno"]),
                message["when"],
            )
            ranks = ranks_of.setdefault(key, [])
            if state.rank not in ranks:
                ranks.append(state.rank)
    for (text, module, name, filename, line, when), ranks in ranks_of.items():
        category = _category(module, name)
        warning = warnings.WarningMessage(
            category(f"{text} ({fold_ranks(ranks)})"), category, filename, int(line)
        )
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warning,
                "when": when,
                "nodeid": item.nodeid,
                "location": None,
            }
        )


def _category(module: str, name: str) -> type[Warning]:
    """Return a warning's class; one that can't be had or made here is a plain UserWarning."""
    try:
        category = getattr(importlib.import_module(module), name)
        category("text")
    except Exception:  # a user's class may do anything
        return UserWarning
    return category if issubclass(category, Warning) else UserWarning
