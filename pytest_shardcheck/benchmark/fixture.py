"""The ``benchmark`` fixture of a rank: one rank decides, all make the same calls. Runs in a rank.

Rank 0 runs pytest-benchmark's own code, which is told of each round that it lasted as long as on
the slowest rank. So calibration, warm-up, rounds and precision are pytest-benchmark's, and no rank
that is faster or slower decides otherwise. The others do what rank 0 announces.

Between rounds ranks meet in shared memory; where they begin and end they do so through the session,
which sees who never came. No collective is issued.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from pytest_shardcheck.benchmark import _private
from pytest_shardcheck.benchmark._private import BenchmarkFixture
from pytest_shardcheck.benchmark.meeting import Meeting
from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users
from pytest_shardcheck.worlds.keys import RANK

if TYPE_CHECKING:
    from pytest_shardcheck.worlds.rank import RankContext

__tracebackhide__ = hide_from_users  # and always where an error of the timed function passes

_DECIDES: Final = 0
# What rank 0 announces, beside a number of calls to time; and what the others say meanwhile.
_CALL: Final = 0
_END: Final = -1
_LISTENS: Final = -2
_NUMBERS: Final = ("rounds", "warmup_rounds", "iterations")
_RETIRED: Final = (
    "benchmark() before it ran without instruments, and what it left behind is unknown. Measure "
    "first, then benchmark"
)
_NO_WEAVE: Final = (
    "benchmark.weave() in a world test: when the woven function is called first, and by which "
    "ranks, is not known before it is. Call benchmark(function, ...) or benchmark.pedantic(...), "
    "which all ranks begin together"
)


_NO_SIMULATED: Final = (
    "{what} in a simulated world: fake tensors compute nothing, so there is no time to take. Call "
    "it where `not world.simulated`, or time a real world of fewer ranks"
)


class RankBenchmark:
    """The plugin of ranks where pytest-benchmark is active."""

    @pytest.fixture
    def benchmark(self, benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> object:
        """Return pytest-benchmark's fixture, which here works together with the other ranks'."""
        context = request.config.stash[RANK]
        together = TogetherBenchmark(benchmark, context)
        context.to_report["benchmark"] = together.to_report
        return together


class TogetherBenchmark(BenchmarkFixture):  # type: ignore[misc]  # it is untyped
    """A fixture that times a function on all ranks at once."""

    def __init__(self, original: BenchmarkFixture, context: RankContext) -> None:
        """Take the place of ``original``, in the rank of ``context``."""
        # The same attributes: pytest-benchmark looks at the original's when the test has ended.
        self.__dict__ = vars(original)
        self._context: RankContext = context
        self._meeting: Meeting | None = None
        self._what = "benchmark(...)"
        self._decides = context.rank == _DECIDES
        self._round_s = 0.0
        self._inside: list[str] = []
        self._completed = False

    def to_report(self) -> dict[str, Any]:
        """Return as plain data what the session needs to know of this rank."""
        report: dict[str, Any] = {
            "extra_info": {str(name): _plain(value) for name, value in self.extra_info.items()},
            "inside": self._inside,
            "completed": self._completed,
        }
        if self._completed and self._decides:
            timed = self.stats.as_dict(include_data=False, stats=False)
            report |= {
                "group": timed["group"],
                "options": timed["options"],
                "iterations": self.stats.iterations,
                "seconds": self.stats.stats.data,
                "profile": _private.profile_of(self),
            }
        return report

    def weave(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        raise UsageError(_NO_WEAVE)

    patch = weave

    def _raw(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._begin("benchmark(...)", {})
        if self.disabled:
            return super()._raw(function_to_benchmark, *args, **kwargs)
        if not self._decides:
            return self._follow(function_to_benchmark, args, kwargs)
        announced = _Announced(function_to_benchmark, lambda: self._announce(_CALL))
        result = super()._raw(announced, *args, **kwargs)
        self._announce(_END)
        self._exchange([self.stats.iterations, self.stats.stats.data])
        self._completed = True
        return result

    def _raw_pedantic(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        bound = inspect.signature(super()._raw_pedantic).bind(*args, **kwargs)
        bound.apply_defaults()
        numbers = {name: repr(bound.arguments[name]) for name in _NUMBERS}
        self._begin("benchmark.pedantic(...)", numbers)
        result = super()._raw_pedantic(*args, **kwargs)
        self._completed = not self.disabled
        return result

    def _begin(self, what: str, numbers: dict[str, str]) -> None:
        """Meet the other ranks, and hold our numbers against theirs."""
        self._what = what
        if self._context.order.spec.simulated and not self.disabled:
            raise UsageError(_NO_SIMULATED.format(what=what))
        meter = self._context.meter
        may_retire = meter is None or meter.can_retire()
        if self.disabled:
            if meter is not None and may_retire:
                meter.retire(_RETIRED, stop=False)  # what is an error elsewhere is one here
            return
        given = {"numbers": numbers, "may_retire": may_retire}
        every = self._context.exchange(given, f"called the {what}")
        _refuse_different([rank["numbers"] for rank in every])
        order = self._context.order
        path = Path(order.directory) / "meeting"
        self._meeting = Meeting(path, self._context.rank, order.spec.size, self._context.exchange)
        if meter is None:
            return
        if all(rank["may_retire"] for rank in every):
            meter.retire(_RETIRED)
        else:
            self._inside = meter.regions_open()

    def _make_runner(
        self, function_to_benchmark: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any]:
        function = function_to_benchmark
        if isinstance(function, _Announced):
            function = function.function
        run = super()._make_runner(function, args, kwargs)

        def runner(loops_range: range | None, *timer: Any) -> Any:
            __tracebackhide__ = True
            began = time.perf_counter()
            self._announce(len(loops_range) if loops_range else 1)
            timed = self._together(run, loops_range, *timer)
            self._round_s = time.perf_counter() - began
            return timed

        return runner

    def _calibrate_timer(self, runner: Callable[..., Any]) -> tuple[float, int, range]:
        """Count what passes between rounds towards ``max_time``: short rounds are mostly that."""
        __tracebackhide__ = True
        duration, loops, loops_range = super()._calibrate_timer(runner)
        return max(duration, self._round_s), loops, loops_range

    def _save_cprofile(self, profile: Any) -> None:
        # In pedantic mode every rank has a profile; they would write one file.
        if self._decides:
            super()._save_cprofile(profile)

    def _follow(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what rank 0 announces, until it is through."""
        __tracebackhide__ = True
        run = super()._make_runner(function, args, kwargs)
        result = None
        while (order := self._announce(_LISTENS)) != _END:
            if order == _CALL:
                result = function(*args, **kwargs)
                continue
            with _private.paused():
                self._together(run, range(order))
        iterations, seconds = self._exchange(None)[_DECIDES]
        _private.fill(self, iterations, seconds)
        self._completed = True
        return result

    def _together(self, run: Callable[..., Any], loops_range: range | None, *timer: Any) -> Any:
        """Run a round on all ranks at once; what it took is what the slowest needed."""
        __tracebackhide__ = True
        assert self._meeting is not None
        self._meeting.start_together()
        timed = run(loops_range, *timer)
        seconds = timed if loops_range else timed[0]
        slowest = max(self._meeting.meet(seconds, f"ended the round of the {self._what}"))
        return slowest if loops_range else (slowest, timed[1])

    def _announce(self, order: int) -> int:
        """Tell the other ranks what comes next, or be told; return it."""
        assert self._meeting is not None
        orders = self._meeting.meet(order, f"came to the next round of the {self._what}")
        return int(orders[_DECIDES])

    def _exchange(self, value: Any) -> list[Any]:
        return self._context.exchange(value, f"came to the end of the {self._what}")


class _Announced:
    """A function that announces each call of it: those that pytest-benchmark does not time."""

    def __init__(self, function: Callable[..., Any], announce: Callable[[], object]) -> None:
        self.function = function
        self._announce = announce

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._announce()
        return self.function(*args, **kwargs)


def _plain(value: object) -> object:
    """Return a value that JSON can write, or else how it looks."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def _refuse_different(numbers: list[dict[str, str]]) -> None:
    for name in numbers[_DECIDES]:
        values = [its[name] for its in numbers]
        if len(set(values)) > 1:
            given = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise UsageError(
                f"benchmark.pedantic({name}=...) differs between ranks: {given}. Every rank makes "
                "the same calls; give the same number on all of them"
            )
