"""The ``world_size`` marker: its arguments become the specs of the worlds to run a test in."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.specs import WorldSpec, default_backend

_ACCEPTED: Final = ("backend", "device", "mesh", "simulate", "ranks", "timeout")
_DEVICES: Final = ("cpu", "cuda")


def worlds_of(node: pytest.Item, default_sizes: tuple[int, ...] = ()) -> list[WorldSpec]:
    """Return the worlds that a test is to run in; none for a test that asks for none.

    Markers of one level (function, class, module) are united; a closer level replaces the others.

    Raises:
        UsageError: An argument is wrong, or two worlds differ but would have the same test id.
    """
    marks = closest_level(node, "world_size")
    specs = [spec for mark in marks for spec in parse(mark, node.nodeid)]
    if not marks:
        specs = [WorldSpec(size=size) for size in default_sizes]
    return _distinct(specs, node.nodeid)


def closest_level(node: pytest.Item, name: str) -> list[pytest.Mark]:
    """Return the marks called ``name`` of the closest node that has any, in written order."""
    marks = list(node.iter_markers_with_node(name))
    closest = [mark for owner, mark in marks if owner is marks[0][0]]
    return closest[::-1]


def parse(mark: pytest.Mark, where: str) -> list[WorldSpec]:
    """Return the worlds of one marker.

    Raises:
        UsageError: Names the test, the argument, what was given and what is accepted.
    """
    arguments = dict(mark.kwargs)
    for name in arguments:
        if name not in _ACCEPTED:
            raise _error(where, f"unknown argument {name!r}", _accepted(name))
    device = _device(arguments.get("device", "cpu"), where)
    simulated = _simulated(arguments.get("simulate", False), device, where)
    ranks = arguments.get("ranks")
    if ranks is not None and not simulated:
        raise _error(where, f"ranks={ranks!r}", "ranks= with simulate=True; real worlds run all")
    return [
        WorldSpec(
            size=size,
            backend=_backend(arguments.get("backend"), device, where),
            device=device,
            named_axes=axes,
            timeout_s=_timeout(arguments.get("timeout"), where),
            simulated=simulated,
            ranks=_ranks(ranks, size, where),
        )
        for size, axes in _shapes(mark.args, arguments.get("mesh"), where)
    ]


def _shapes(
    sizes: tuple[Any, ...], mesh: object, where: str
) -> Iterable[tuple[int, tuple[tuple[str, int], ...]]]:
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise _error(where, f"size {size!r}", "whole numbers above 0, such as world_size(2, 4)")
    if mesh is None:
        if not sizes:
            raise _error(where, "no size", "at least one size, such as world_size(2), or mesh=")
        return [(size, ()) for size in sizes]
    axes = _axes(mesh, where)
    if not sizes:
        if any(length == -1 for _, length in axes):
            raise _error(
                where, f"mesh={mesh!r}", "an axis of -1 needs a size to be worked out from"
            )
        sizes = (math.prod(length for _, length in axes),)
    return [(size, _resolve(axes, size, where)) for size in sizes]


def _axes(mesh: object, where: str) -> tuple[tuple[str, int], ...]:
    accepted = 'a mapping from axis names to lengths, such as {"dp": 2, "tp": 2}; one may be -1'
    if not isinstance(mesh, Mapping) or not mesh:
        raise _error(where, f"mesh={mesh!r}", accepted)
    for axis, length in mesh.items():
        if not isinstance(axis, str) or not re.fullmatch(r"[A-Za-z_]\w*", axis):
            raise _error(where, f"mesh axis {axis!r}", "names such as dp, which -k can select")
        if isinstance(length, bool) or not isinstance(length, int) or (length < 1 and length != -1):
            raise _error(where, f"mesh axis {axis!r} of length {length!r}", accepted)
    if list(mesh.values()).count(-1) > 1:
        raise _error(where, f"mesh={mesh!r} with several axes of -1", accepted)
    return tuple(mesh.items())


def _resolve(
    axes: tuple[tuple[str, int], ...], size: int, where: str
) -> tuple[tuple[str, int], ...]:
    known = math.prod(length for _, length in axes if length != -1)
    has_free = any(length == -1 for _, length in axes)
    if size % known if has_free else size != known:
        raise _error(
            where,
            f"size {size} with mesh={dict(axes)!r}",
            f"a size that is {'a multiple of' if has_free else ''} {known}".replace("  ", " "),
        )
    return tuple((axis, size // known if length == -1 else length) for axis, length in axes)


def _device(device: object, where: str) -> str:
    if device not in _DEVICES:
        raise _error(where, f"device={device!r}", "'cpu' or 'cuda' (each rank takes its own GPU)")
    return str(device)


def _simulated(simulate: object, device: str, where: str) -> bool:
    if not isinstance(simulate, bool):
        raise _error(where, f"simulate={simulate!r}", "True or False")
    if simulate and device != "cpu":
        raise _error(
            where,
            f"simulate=True with device={device!r}",
            "simulated worlds on the CPU, where no GPU is needed: tensors have the same bytes "
            "there. Leave device= out, and take the device from world.device in the test",
        )
    return simulate


def _ranks(ranks: object, size: int, where: str) -> tuple[int, ...] | None:
    """Return the ranks to simulate; None where the marker leaves the choice to us."""
    if ranks is None:
        return None
    if ranks == "all":
        return tuple(range(size))
    several = list(ranks) if isinstance(ranks, (list, tuple, set, frozenset, range)) else [ranks]
    whole = [r for r in several if isinstance(r, int) and not isinstance(r, bool)]
    if not several or len(whole) < len(several) or not all(-size <= r < size for r in whole):
        raise _error(
            where,
            f"ranks={ranks!r}",
            f'"all", or numbers of ranks of the world of {size} (negative ones count from its '
            "end), such as ranks=[0, -1]",
        )
    return tuple(sorted({rank % size for rank in whole}))


def _backend(backend: object, device: str, where: str) -> str:
    if backend is None:
        return default_backend(device)
    if not isinstance(backend, str) or not backend:
        raise _error(where, f"backend={backend!r}", "a backend's name, such as 'gloo'")
    return backend


def _timeout(timeout: object, where: str) -> float | None:
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    seconds = float(timeout) if is_number else math.nan  # type: ignore[arg-type]
    if not 0 < seconds < math.inf:
        raise _error(where, f"timeout={timeout!r}", "a number of seconds above 0")
    return seconds


def _distinct(specs: list[WorldSpec], where: str) -> list[WorldSpec]:
    by_id: dict[str, WorldSpec] = {}
    for spec in specs:
        if by_id.setdefault(spec.id, spec) != spec:
            raise _error(
                where,
                f"two different worlds that are both called [{spec.id}]",
                "one of them: they would be two tests with the same id",
            )
    return list(by_id.values())


def _accepted(name: str) -> str:
    close = difflib.get_close_matches(name, _ACCEPTED, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"sizes, and {', '.join(_ACCEPTED)}{hint}"


def _error(where: str, given: str, accepted: str) -> UsageError:
    return UsageError(f"{where}: @pytest.mark.world_size: {given} was given; accepted: {accepted}")
