"""The line that shows that a long world lives: on a terminal, and only there."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
from types import SimpleNamespace

import pytest
from screen import Screen

from pytest_shardcheck.plugin import life
from pytest_shardcheck.reports.recording import read
from pytest_shardcheck.vocabulary.call_log import Descriptor, Stream
from pytest_shardcheck.worlds import clock, progress, watchdog
from pytest_shardcheck.worlds.orders import progress_path, ring_path
from pytest_shardcheck.worlds.progress import Progress
from pytest_shardcheck.worlds.rank_state import RankState
from pytest_shardcheck.worlds.ring import Ring, read_last

WIDTH = 40


class Terminal:
    """What LifeSign needs of pytest's, in front of a screen."""

    def __init__(self, screen: Screen, line: str) -> None:
        self._screen, self._line = screen, ""
        self.config = SimpleNamespace(
            get_terminal_writer=lambda: SimpleNamespace(
                fullwidth=screen.width, width_of_current_line=len(self._line)
            ),
            pluginmanager=SimpleNamespace(getplugin=lambda _: None),
        )
        self.pytest_writes(line)

    def pytest_writes(self, text: str) -> None:
        self._line = (self._line + text).rpartition("\n")[2]
        self._screen.feed(text.replace("\n", "\r\n"))

    def write_raw(self, text: str, *, flush: bool) -> None:
        assert flush
        self._screen.feed(text.replace("\n", "\r\n"))


@pytest.fixture
def doing(monkeypatch):
    said = SimpleNamespace(text="rank 0 in call", now=100.0)
    monkeypatch.setattr(watchdog, "what_ranks_do", lambda *_: said.text)
    monkeypatch.setattr(clock, "now", lambda: said.now)
    return said


WORLD = SimpleNamespace(started=90.0, directory=None, states=None)


@pytest.mark.parametrize("height", [3, 50], ids=["at-the-bottom", "in-the-middle"])
@pytest.mark.parametrize(
    "line", ["", "a.py ..", "a" * 35, "long::" + "b" * 70], ids=["empty", "dots", "full", "broken"]
)
def test_it_stands_below_and_pytest_goes_on_where_it_was(doing, height, line):
    written, unwritten = Screen(WIDTH, height), Screen(WIDTH, height)
    before = "header\n" * 5
    terminal, plain = Terminal(written, before + line), Terminal(unwritten, before + line)
    sign = life.LifeSign(terminal)
    for text in ("rank 0 in call, x" + "y" * 50, "rank 0 in call"):
        doing.text = text
        doing.now += 10
        sign.look(WORLD)
        shown = f"{doing.now - 90:.0f} s: {text}"[: WIDTH - 1]
        assert written.rows[-1] == shown
        assert written.rows[:-1] == unwritten.rows
        assert (written.row, written.column) == (unwritten.row, unwritten.column)
    terminal.pytest_writes(".")
    plain.pytest_writes(".")
    sign.erase()
    sign.erase()
    for each in (terminal, plain):
        each.pytest_writes("  [100%]\nmore\n")
    assert written.text == unwritten.text


def test_a_line_that_waits_at_the_edge_is_left_alone(doing):
    screen = Screen(WIDTH, 10)
    terminal = Terminal(screen, "a" * WIDTH)
    life.LifeSign(terminal).look(WORLD)
    terminal.pytest_writes("b")
    assert screen.rows == ["a" * WIDTH, "b"]


def test_it_waits_first_and_is_written_once_a_second(doing):
    screen = Screen(WIDTH, 10)
    sign = life.LifeSign(Terminal(screen, ""))
    times = []
    for now in (90.0, 94.9, 95.0, 95.5, 95.9, 96.0, 97.0):
        doing.now, doing.text = now, f"at {now}"
        sign.look(WORLD)
        times.append(screen.text[1:])
    said = [text.rpartition(" at ")[2] for text in times]
    assert said == ["", "", "95.0", "95.0", "95.0", "96.0", "97.0"]
    sign.erase()
    doing.now = 98.0
    sign.look(SimpleNamespace(**{**vars(WORLD), "started": 97.5}))
    assert screen.text == ""


def test_names_can_not_move_the_cursor(doing):
    screen = Screen(WIDTH, 10)
    doing.text = "group \x1b[2J\n\u8a08\u7b97 \x9b"
    life.LifeSign(Terminal(screen, "x")).look(WORLD)
    assert screen.rows == ["x", "10 s: group ?[2J??? ?"]


def call(ring: Ring, operation: str, *, returned: bool) -> None:
    stream = Stream(name="0", label="dp", ranks=(0, 1, 2))
    place = ring.issued(Descriptor(operation=operation, stream=stream), 0)
    if returned:
        ring.returned(place)


def test_what_ranks_do_is_folded(tmp_path):
    for rank in (0, 1):
        ring = Ring(ring_path(tmp_path, rank))
        for _ in range(70):  # more than a ring holds
            call(ring, "all_gather", returned=True)
        call(ring, "all_reduce", returned=False)
    Ring(ring_path(tmp_path, 2))
    states = [RankState(rank, started=rank < 3) for rank in range(4)]
    assert watchdog.what_ranks_do(tmp_path, states) == (
        "ranks 0-1 in setup, all_reduce #71 of group dp (not returned); "
        "rank 2 in setup, no collective yet; rank 3 in start, no collective yet"
    )


def test_a_simulated_rank_says_how_far_its_training_is(tmp_path):
    said = Progress(progress_path(tmp_path, 0))
    states = [RankState(0, started=True)]
    seen = []
    for steps, phase in ((0, ""), (0, "forward"), (0, "backward"), (1, "optimizer")):
        said.tell(steps, phase)
        seen.append(watchdog.what_ranks_do(tmp_path, states))
    texts = ["", "step 1 forward, ", "step 1 backward, ", "step 2 optimizer, "]
    assert seen == [f"rank 0 in setup, {text}no collective yet" for text in texts]


def test_progress_that_is_not_whole_is_no_error(tmp_path):
    assert progress.read(tmp_path / "none") == ""
    (tmp_path / "short").write_bytes(b"\1" * 3)
    assert progress.read(tmp_path / "short") == ""


def test_a_ring_that_is_not_whole_is_no_error(tmp_path):
    assert read_last(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert read_last(tmp_path / "empty") is None
    (tmp_path / "short").write_bytes(b"\1" * 20)
    assert read_last(tmp_path / "short") is None


CONFTEST = """
    import contextlib, os, pathlib
    from pytest_shardcheck.plugin import life

    life.AFTER_S = life.EVERY_S = 0.0  # as if the world ran for long
    for name in ("fifo0-1", "fifo1-1", "fifo0-2", "fifo1-2"):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pathlib.Path(__file__).with_name(name))
"""
TESTS = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_long(process_group, world, number):
        print(f"captured {number}")
        for _ in range(number):
            dist.all_reduce(torch.ones(1))
        open(f"fifo{world.rank}-{number}").read()
        assert number == 1, "it should"
"""
WIDE = 120  # run_session says so


class OnTerminal:
    """A session whose output is a terminal; what the terminal shows is `screen`."""

    def __init__(self, run_session, *args):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, WIDE, 0, 0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm")
            self.process, session = run_session.start(
                {"conftest.py": CONFTEST, "test_it.py": TESTS},
                "--color=no",
                "--shardcheck-timeout=60",
                *args,
                stdout=theirs,
                stderr=theirs,
                text=False,
            )
        os.close(theirs)
        self._fd = ours
        self.root = session.temporary.parent
        self.screen = Screen(WIDE, 12)

    def read_until(self, text: str | None) -> str:
        """Read until a line of the terminal ends in `text`; to the end where none ever does."""
        while text is None or not any(row.endswith(text) for row in self.screen.rows):
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # the session has ended, and with it its side of the terminal
                break
            self.screen.feed(data.decode(errors="replace"))
        return self.screen.text

    def go_on(self, number: int) -> None:
        for rank in (0, 1):  # opening it waits until the rank has opened it, too
            (self.root / f"fifo{rank}-{number}").write_text("")

    def end(self, returncode: int) -> str:
        text = self.read_until(None)
        os.close(self._fd)
        assert self.process.wait() == returncode
        return text


def test_a_terminal_shows_it_while_the_world_lasts(run_session):
    terminal = OnTerminal(run_session, "-p", "no:sugar")  # which draws on the terminal itself
    try:
        for number, written in ((1, "test_it.py "), (2, "test_it.py .")):
            doing = f"ranks 0-1 in call, all_reduce #{number}"
            *_, pytests, ours = terminal.read_until(doing).splitlines()
            assert ours.endswith(f" s: {doing}"), terminal.screen.text
            assert pytests.startswith(written.rstrip())
            terminal.go_on(number)
        text = terminal.end(1)
    finally:
        terminal.process.kill()
    assert "ranks 0-1 in" not in text
    lines = text.splitlines()
    assert f"test_it.py .F{'[100%]'.rjust(WIDE - 1 - len('test_it.py .F'))}" in lines, text
    # What the ranks printed stays captured, and is all there.
    assert lines.count("captured 2") == 1
    assert "captured 1" not in lines
    assert lines[-2].startswith("FAILED test_it.py::test_long[world2-2]")


def test_an_interrupt_erases_it_and_the_recording_says_so(run_session):
    terminal = OnTerminal(run_session, "-p", "no:sugar", "--shardcheck-json=out.json")
    try:
        terminal.read_until("ranks 0-1 in call, all_reduce #1")
        terminal.go_on(1)
        terminal.read_until("ranks 0-1 in call, all_reduce #2")
        terminal.process.send_signal(signal.SIGINT)
        text = terminal.end(2)
    finally:
        terminal.process.kill()
    assert "ranks 0-1 in" not in text
    assert "(incomplete:interrupted)" in "".join(text.split())  # it may be broken anywhere
    recording = read(terminal.root / "out.json")
    assert recording.incomplete == "interrupted"
    # The second was set up, and that is all that is known of it: it has not passed.
    assert [(test.nodeid[-2:], test.outcome) for test in recording.tests] == [("1]", "passed")]


NOBODY_WATCHES = {
    "piped": ([], False, {}),
    "printing": (["-s"], True, {}),
    "logging": (["--log-cli-level=INFO"], True, {}),
    "very-quiet": (["-qq"], True, {}),
    "no-terminal": (["-p", "no:terminal"], True, {}),
    "dumb": ([], True, {"TERM": "dumb"}),
    "no-term": ([], True, {"TERM": None}),
}


@pytest.mark.parametrize("name", ["watched", *NOBODY_WATCHES])
def test_where_nobody_watches_there_is_none(pytester, monkeypatch, name):
    args, isatty, environment = NOBODY_WATCHES.get(name, (["--log-file=log"], True, {}))
    for variable, value in {"TERM": "xterm", **environment}.items():
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    config = pytester.parseconfigure(*args)
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        monkeypatch.setattr(terminal, "isatty", lambda: isatty)
    assert (life.of_session(config) is not None) == (name == "watched")


def test_a_terminal_that_another_plugin_draws_on_is_left_alone(pytester, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    config = pytester.parseconfigure()
    theirs = type("Theirs", (pytest.TerminalReporter,), {})(config)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(theirs, "terminalreporter")
    monkeypatch.setattr(theirs, "isatty", lambda: True)
    assert life.of_session(config) is None
