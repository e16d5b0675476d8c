"""At collection: parametrize over worlds, clone unittest methods, parse every marker once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.expectations import (
    MARKERS,
    Expectation,
    applicable,
    check_world_sizes,
    parse_expectation,
    with_ranks,
)
from pytest_shardcheck.plugin import cuda, fixtures
from pytest_shardcheck.plugin.settings import Settings
from pytest_shardcheck.plugin.world_marker import closest_level, worlds_of
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.worlds import no_syrupy
from pytest_shardcheck.worlds.keys import EXPECTATIONS, SIZES, SPEC, TRACKED

# The markers that an item was prepared with. A node id in the arguments makes its item pass through
# the session's collector once more, and a hook may add markers after that.
_PREPARED: Final = pytest.StashKey[list[pytest.Mark]]()
_PARAMETER: Final = "_shardcheck_world"
# Fixtures of other plugins, by name: the package they come from, and why ranks can't have them.
_NOT_IN_RANKS: Final = {
    "snapshot": ("syrupy", no_syrupy.ADVICE),
}
# Fixtures of packages that an extra of ours installs: the package, and the extra.
_FROM_EXTRAS: Final = {"benchmark": ("pytest-benchmark", "benchmark")}
_MARKERS: Final = frozenset({"world_size", "cuda", *MARKERS})


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Make one test of each world that the function's markers ask for."""
    definition = metafunc.definition
    if launches_its_own_ranks(definition):
        return
    specs: list[WorldSpec] = []
    problem = ""
    try:
        specs = worlds_of(definition, _default_sizes(definition, settings))
    except UsageError as error:
        problem = str(error)
    if problem:  # not in the except block, or the message would be printed twice
        pytest.fail(problem, pytrace=False)
    if specs:
        metafunc.fixturenames.append(_PARAMETER)
        metafunc.parametrize(_PARAMETER, [_parameter(spec) for spec in specs])


def will_run_in_a_world(item: pytest.Item) -> bool:
    """Tell whether a test will start ranks: not one whose skip or failure is decided already."""
    decided = item.get_closest_marker("skip") is not None or cuda.REASON in item.stash
    runs_nothing = item.config.option.collectonly or item.config.option.setupplan
    return SPEC in item.stash and not decided and not runs_nothing


def launches_its_own_ranks(node: pytest.Item) -> bool:
    """Tell whether a test's class starts ranks itself, as DeepSpeed's ``DistributedTest`` does."""
    return bool(getattr(getattr(node, "cls", None), "is_dist_test", False))


def prepare_report(report: pytest.CollectReport, settings: Settings) -> None:
    """Attach worlds and expectations to a collector's children; say all that is wrong with them."""
    try:
        report.result = _prepare(report.result, settings)
    except UsageError as error:
        report.outcome = "failed"
        report.longrepr = str(error)
        report.result = []


def _prepare(
    items: list[pytest.Item | pytest.Collector], settings: Settings
) -> list[pytest.Item | pytest.Collector]:
    prepared: list[pytest.Item | pytest.Collector] = []
    problems: list[str] = []
    for item in items:
        try:
            prepared += _prepared(item, settings)
        except UsageError as error:
            if str(error) not in problems:
                problems.append(str(error))
    problems += _duplicates(prepared)
    if problems:
        raise UsageError("\n".join(problems))
    return prepared


def prepare_again(items: list[pytest.Item], settings: Settings) -> list[pytest.CollectReport]:
    """Look at what will run once more: hooks have added markers and left tests out since.

    Takes what is wrong out of ``items`` and returns its errors. (An exception here would be a usage
    error too, but in a worker xdist takes it for a crash.)
    """
    reports = []
    for item in list(items):
        try:
            if item.stash.get(_PREPARED, []) != _our_markers(item):
                _attach_own(item)
            _refuse_too_large(item, settings.max_ranks)
        except UsageError as error:
            items.remove(item)
            reports.append(pytest.CollectReport(item.nodeid, "failed", str(error), []))
    return reports


def _refuse_too_large(item: pytest.Item, most: int | None) -> None:
    spec = item.stash.get(SPEC, None)
    if spec is None or most is None:
        return
    if (count := len(spec.running)) > most:
        raise UsageError(
            f"{item.nodeid}: a world of {count} ranks was asked for; at most {most} may run at "
            f"once. Raise --shardcheck-max-ranks (ini shardcheck_max_ranks) to {count}, or "
            "deselect the test with -k."
        )


def _our_markers(item: pytest.Item) -> list[pytest.Mark]:
    return [mark for mark in item.iter_markers() if mark.name in _MARKERS]


def _duplicates(nodes: list[pytest.Item | pytest.Collector]) -> list[str]:
    """Name the ids that a world test shares with another: one of the two could never be chosen."""
    worlds = {node.nodeid for node in nodes if SPEC in node.stash}
    counts = Counter(node.nodeid for node in nodes)
    return [
        f"{nodeid}: {counts[nodeid]} tests have this id; rename the one that is made from no world"
        for nodeid in sorted(worlds)
        if counts[nodeid] > 1
    ]


def _prepared(
    item: pytest.Item | pytest.Collector, settings: Settings
) -> Iterator[pytest.Item | pytest.Collector]:
    if not isinstance(item, pytest.Item) or launches_its_own_ranks(item) or _PREPARED in item.stash:
        yield item
    elif isinstance(item, _compat.TestCaseFunction) and not launches_its_own_ranks(item):
        yield from _clones(item, settings)
    else:
        _attach_own(item)
        yield item


def _clones(item: _compat.TestCaseFunction, settings: Settings) -> Iterator[pytest.Item]:
    """Give a unittest method one item for each world."""
    specs = worlds_of(item, _default_sizes(item, settings))
    for spec in specs:
        clone = _compat.WorldTestCaseFunction.of(item, spec.id)
        if spec.device == "cuda":
            clone.add_marker("cuda")
        _attach(clone, spec)
        yield clone
    if not specs:
        _attach(item, None)
        yield item


def _attach_own(item: pytest.Item) -> None:
    if not launches_its_own_ranks(item):
        _attach(item, _spec(item))


def _spec(item: pytest.Item) -> WorldSpec | None:
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    spec: WorldSpec | None = params.get(_PARAMETER, item.stash.get(SPEC, None))
    if spec is None and not closest_level(item, "world_size"):
        return None
    # What pytest.param(..., marks=...) or a hook adds comes too late to make several tests.
    specs = worlds_of(item)
    in_param = any(mark.name == "world_size" for mark in callspec.marks) if callspec else False
    if spec is not None and not in_param:
        return spec
    if spec is not None or len(specs) > 1:
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.world_size: pytest.param(marks=...) or a hook adds a "
            f"marker; accepted there: one world, on a function that has no world_size of its own "
            "(here: " + ", ".join(world.id for world in specs) + "). Mark the function instead."
        )
    return specs[0]


def _attach(item: pytest.Item, spec: WorldSpec | None) -> None:
    item.stash[_PREPARED] = _our_markers(item)
    requested = _our_fixtures(item)
    expectations = _expectations(item)
    need = cuda.need_of(item, spec.size if spec is not None else 1)
    if need is not None:
        item.stash[cuda.NEED] = need
    if spec is None:
        _refuse_without_world(item, requested, expectations)
        return
    _refuse_foreign_fixtures(item)
    item.stash[SPEC] = spec = with_ranks(spec, expectations)
    item.stash[SIZES] = sizes = [world.size for world in worlds_of(item)] or [spec.size]
    check_world_sizes(expectations, sizes)
    # Works every value out, so that a size missing from a mapping is known before a rank starts.
    item.stash[EXPECTATIONS] = tuple(applicable(expectations, spec))
    item.stash[TRACKED] = bool(expectations) or "shardcheck" in requested


def _expectations(item: pytest.Item) -> tuple[Expectation, ...]:
    found = []
    levels: dict[Any, int] = {}
    for owner, mark in item.iter_markers_with_node():
        level = levels.setdefault(owner, len(levels))
        if mark.name in MARKERS:
            found.append(
                parse_expectation(mark.name, mark.args, mark.kwargs, where=item.nodeid, level=level)
            )
    return tuple(found)


def _default_sizes(item: pytest.Item, settings: Settings) -> tuple[int, ...]:
    return settings.world_size if _our_fixtures(item) else ()


def _refuse_foreign_fixtures(item: pytest.Item) -> None:
    """Refuse what would hang or silently pass in ranks, which run a test each."""
    info = getattr(item, "_fixtureinfo", None)
    for name, (package, why) in _NOT_IN_RANKS.items():
        definitions = info.name2fixturedefs.get(name) if info is not None else None
        if definitions and definitions[-1].func.__module__.split(".")[0] == package:
            raise UsageError(f"{item.nodeid}: the fixture {name!r} in a world test: {why}")
    for name, (package, extra) in _FROM_EXTRAS.items():
        # fixturenames: what a parameter provides is there too, and needs no fixture.
        if info is not None and name in info.argnames and not info.name2fixturedefs.get(name):
            raise UsageError(
                f"{item.nodeid}: the fixture {name!r} is that of {package}, which is not installed "
                f"or switched off. Install it with: pip install 'pytest-shardcheck[{extra}]'"
            )


def _refuse_without_world(
    item: pytest.Item, requested: list[str], expectations: tuple[Expectation, ...]
) -> None:
    if requested:
        what = f"it requests the fixture {requested[0]!r}"
    elif expectations:
        what = f"it carries @pytest.mark.{expectations[0].marker}"
    else:
        return
    raise fixtures.no_world(item.nodeid, what)


def _our_fixtures(item: pytest.Item) -> list[str]:
    """Return the fixtures of ours that a test requests: not those that a user overrides by name."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return []
    return [
        name
        for name in fixtures.NAMES
        if (definitions := info.name2fixturedefs.get(name))
        and definitions[-1].func.__module__ == fixtures.__name__
    ]


def _parameter(spec: WorldSpec) -> Any:
    marks = [pytest.mark.cuda] if spec.device == "cuda" else []
    return pytest.param(spec, id=spec.id, marks=marks)
