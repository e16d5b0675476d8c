"""What runs inside a rank: the ordinary pytest protocol of one item, streamed to the session.

Imports nothing of the session's side. A rank ends with its completion record, the session's *leave*
and ``os._exit``: interpreter shutdown, where gloo's threads abort, is never reached, and no rank is
gone while a peer still talks to it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.expectations import demands_of
from pytest_shardcheck.worlds import coverage, no_terminal, packed_timelines, rendezvous
from pytest_shardcheck.worlds.channel import Channel, Message
from pytest_shardcheck.worlds.keys import EXPECTATIONS, RANK, TRACKED
from pytest_shardcheck.worlds.live_log import LiveLog
from pytest_shardcheck.worlds.orders import (
    DUMP_SIGNAL,
    SEED,
    Order,
    progress_path,
    ring_path,
    stack_path,
    timeline_path,
)
from pytest_shardcheck.worlds.progress import Progress
from pytest_shardcheck.worlds.ring import Place, Ring
from pytest_shardcheck.worlds.taught import TaughtFrameworks

if TYPE_CHECKING:
    from pytest_shardcheck.expectations import Expectation
    from pytest_shardcheck.instruments.c10d_tap import Tapped
    from pytest_shardcheck.instruments.meter import Meter
    from pytest_shardcheck.vocabulary.frameworks import Frameworks


@dataclass
class RankContext:
    """What the fixtures of a test need to know of the rank they run in."""

    rank: int
    order: Order
    channel: Channel
    frameworks: Frameworks
    meter: Meter | None = None
    gathered: int = 0
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    reported: bool = False  # the report of the call, with which snapshots go, was sent
    own_tmp_path: Path = field(default_factory=Path)
    # By name, what makes the plain data that goes to the session with the report of the call.
    to_report: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Return the rank's device as torch names it."""
        return f"cuda:{self.rank}" if self.order.spec.device == "cuda" else "cpu"

    def track(self, expectations: Sequence[Expectation] = ()) -> Meter:
        """Return the rank's meter, started by whoever needs it first."""
        if self.meter is None:
            from pytest_shardcheck.instruments.meter import Meter

            demands = demands_of(expectations, self.order.spec, self.rank)
            demands = replace(demands, timeline=self.order.timeline)
            self.meter = Meter(self.rank, self.device, demands, self.frameworks)
            # Regions collect garbage where they begin and end: not through all of torch's objects.
            # Only now: the meter looks among them for the meshes that there are.
            gc.freeze()
        return self.meter

    def exchange(self, value: Any, deed: str) -> list[Any]:
        """Give plain data to every rank and return everyone's, ordered by rank.

        Goes through the session, so that no collective is issued, let alone counted. ``deed`` is
        what a rank did that waits here, to follow "never": ranks meet only in the same one.
        """
        self.gathered += 1
        self.channel.send({"kind": "gather", "number": self.gathered, "deed": deed, "value": value})
        received = self.channel.receive()
        if received is None or received[0]["kind"] != "gathered":
            # The session left or stops this world: there is nobody to tell.
            os._exit(1)
        values: list[Any] = received[0]["values"]
        return values


class RankFixtures:
    """Fixtures that mean something else in a rank; registered before a child collects."""

    @pytest.fixture
    def tmp_path(self, request: pytest.FixtureRequest) -> Path:
        """Return the directory that all ranks of this world share."""
        return Path(request.config.stash[RANK].order.tmp_path)


def run_rank(
    item: pytest.Item, order: Order, rank: int, channel: Channel, output_fd: int
) -> NoReturn:
    """Run ``item`` as rank ``rank`` of the world and end the process; never return or raise."""
    known = set(sys.modules)
    try:
        stop = _run(item, _get_ready(item, order, rank, channel, output_fd))
    except BaseException:
        stop = {"why": "internal", "text": traceback.format_exc()}
    try:
        _compat.flush_standard_streams()
        new = [name for name in sys.modules if name not in known]
        imported = [name for name in new if name.startswith(("torch.", "pytest_shardcheck."))]
        channel.send({"kind": "complete", "stop": stop, "imported": imported})
        channel.receive()  # leave
    finally:
        os._exit(0)


def _get_ready(
    item: pytest.Item, order: Order, rank: int, channel: Channel, output_fd: int
) -> RankContext:
    directory = Path(order.directory)
    capture_fds = _redirect_output(item.config, order.capture, output_fd)
    channel.send({"kind": "hello", "pid": os.getpid()}, capture_fds)
    os.register_at_fork(after_in_child=channel.close)
    _arm_faulthandler(stack_path(directory, rank))
    _set_environment(order, rank)
    context = RankContext(rank, order, channel, TaughtFrameworks(item.ihook))
    context.own_tmp_path = _make_tmp_path(item.config, order, rank)
    _seed_and_limit(order.threads, on_cuda=order.spec.device == "cuda")
    no_terminal.refuse_debuggers(rank)
    rendezvous.install(directory, simulated=order.spec.simulated)
    _record_collectives(ring_path(directory, rank))
    if order.log_level is not None:
        LiveLog(channel).start(order.log_level)
    return context


def _run(item: pytest.Item, context: RankContext) -> Message | None:
    """Run the item's protocol; return why the session must stop, if it must."""
    item.config.stash[RANK] = context
    item.config.pluginmanager.register(_Reporter(item.config, context), "shardcheck-rank")
    try:
        with coverage.measured(context.order.coverage), _simulated(context):
            _compat.run_ordinary_protocol(item)
    except KeyboardInterrupt:
        return {"why": "interrupt", "text": "KeyboardInterrupt"}
    except pytest.exit.Exception as error:
        return {"why": "exit", "text": error.msg, "returncode": error.returncode}
    return None


def _simulated(context: RankContext) -> AbstractContextManager[None]:
    order = context.order
    if not order.spec.simulated:
        return nullcontext()
    from pytest_shardcheck.simulation import simulation

    directory = Path(order.directory)
    progress = Progress(progress_path(directory, context.rank))
    return simulation(directory, context.rank, order.spec.running, progress.tell)


def _redirect_output(config: pytest.Config, capture: str, output_fd: int) -> list[int]:
    """Send what is not captured to the session; return the files of what is."""
    for fd in (1, 2):
        os.dup2(output_fd, fd)
    os.close(output_fd)
    config.option.capture = capture
    return _compat.start_fresh_capture(config, capture)


def _arm_faulthandler(path: Path) -> None:
    """Write the stacks of all threads to ``path`` on a fatal signal or when the session asks."""
    file = path.open("w")
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True, chain=False)


def _set_environment(order: Order, rank: int) -> None:
    os.environ.update(rendezvous.environment(rank, order.spec.size, order.port, os.environ))
    if order.spec.device != "cuda":
        # A rank that only computes on the CPU must not take memory of a GPU, nor be counted there.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _make_tmp_path(config: pytest.Config, order: Order, rank: int) -> Path:
    """Return the rank's own directory, beside the shared one and kept as long as that."""
    own = Path(f"{order.tmp_path}-rank{rank}")
    own.mkdir()
    _compat.redirect_tmp_path_factory(config, Path(f"{own}-factory"))
    return own


def _seed_and_limit(threads: int, *, on_cuda: bool) -> None:
    """Start every rank from the same random state, however its process was started."""
    import torch

    random.seed(SEED)
    # torch.manual_seed also queues a seed for each GPU, with a formatted stack: 4 ms for nothing
    # where no GPU is to be seen.
    seed = torch.manual_seed if on_cuda else torch.default_generator.manual_seed
    seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    torch.set_num_threads(threads)


def _record_collectives(path: Path) -> None:
    from pytest_shardcheck.instruments import c10d_tap

    c10d_tap.install()
    c10d_tap.listen(_RingListener(Ring(path)))


class _RingListener:
    """Writes every call that reaches a process group into the ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def issued(self, call: Tapped) -> Place:
        return self._ring.issued(call.descriptor, time.monotonic_ns())

    def returned(self, token: Place, _: object) -> None:
        self._ring.returned(token)

    def failed(self, token: Place) -> None:
        self._ring.failed(token)


class _Reporter:
    """Streams the item's reports, warnings and readings to the session."""

    def __init__(self, config: pytest.Config, context: RankContext) -> None:
        self._config = config
        self._context = context

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.stash.get(TRACKED, False):
            self._context.track(item.stash[EXPECTATIONS])

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        # The region begins after any other plugin's wrapper has allocated or communicated, and ends
        # before one does so again.
        meter = self._context.meter
        if meter is None:
            return (yield)
        meter.begin_body()
        result = yield
        meter.close()
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._config
        is_subtest = _compat.is_subtest_report(report)
        message: Message = {
            "kind": "subtest" if is_subtest else "report",
            "when": report.when,
            "time_ns": time.monotonic_ns(),
            "report": config.hook.pytest_report_to_serializable(config=config, report=report),
        }
        meter = self._context.meter
        if report.when == "call" and not is_subtest and meter is not None:
            self._write_timeline(meter)
            message["readings"] = [reading.to_json() for reading in meter.readings]
            message["abandoned"] = meter.abandoned
            message["log"] = meter.log()
            message["snapshots"] = list(self._context.snapshots.values())
            self._context.reported = True
        if report.when == "call" and not is_subtest:
            message["extra"] = {name: make() for name, make in self._context.to_report.items()}
        self._context.channel.send(message, encodable=True)

    def _write_timeline(self, meter: Meter) -> None:
        """Leave it in the world's folder: it is larger than all that a rank says otherwise."""
        timeline = meter.timeline()
        if timeline is not None:
            directory = Path(self._context.order.directory)
            path = timeline_path(directory, self._context.rank)
            packed_timelines.write(path, timeline)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: Any, when: str) -> None:
        category = warning_message.category
        self._context.channel.send(
            {
                "kind": "warning",
                "when": when,
                "text": str(warning_message.message),
                "category": [category.__module__, category.__qualname__],
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
            },
            encodable=True,
        )
