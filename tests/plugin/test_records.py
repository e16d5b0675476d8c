"""What became of each world test, put together from pytest's reports."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pytest

# Before pytester, which forgets what a session in this process imported: the second import of
# torch in one process is a segmentation fault.
import torch  # noqa: F401

from pytest_shardcheck.plugin.records import Records, attach
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec

TESTS = """
    import pytest, torch

    @pytest.mark.max_memory(params=1000)
    def test_passes(shardcheck):
        with shardcheck.measure(torch.nn.Linear(4, 4)):
            pass

    @pytest.mark.max_memory(params=70)
    def test_crosses(shardcheck):
        with shardcheck.measure(torch.nn.Linear(4, 4)):
            pass

    @pytest.fixture
    def broken():
        raise RuntimeError("in setup")

    def test_setup(broken, world): pass

    @pytest.fixture
    def broken_later():
        yield
        raise RuntimeError("in teardown")

    def test_teardown(broken_later, world): pass

    def test_skips(world):
        pytest.skip("not here")

    @pytest.mark.xfail
    def test_xfails(world):
        assert world.size == 3

    @pytest.mark.xfail
    def test_xpasses(world): pass

    def test_snapshot(shardcheck):
        shardcheck.snapshot([1, 2], name="pair")  # fails without syrupy, too

    def test_alone(): pass
"""


class _Keeper:
    def __init__(self) -> None:
        self.records = Records()

    def pytest_runtest_logreport(self, report):
        self.records.add(report)


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_every_outcome(pytester, workers):
    if workers:
        pytest.importorskip("xdist")
    if find_spec("syrupy"):
        workers = ["-p", "syrupy", *workers]
    pytester.makeini("[pytest]\nshardcheck_world_size = 2\n")
    pytester.makepyfile(test_it=TESTS)
    keeper = _Keeper()
    pytester.inline_run(*workers, "-p", "no:randomly", plugins=[keeper])
    records = {
        record.nodeid.partition("::")[2].removesuffix("[world2]"): record
        for record in keeper.records.all()
    }
    assert {name: record.outcome for name, record in records.items()} == {
        "test_passes": "passed",
        "test_crosses": "failed",
        "test_setup": "error",
        "test_teardown": "error",
        "test_skips": "skipped",
        "test_xfails": "xfailed",
        "test_xpasses": "xpassed",
        "test_snapshot": "failed",
    }
    assert "in setup" in records["test_setup"].failure
    assert "in teardown" in records["test_teardown"].failure
    crossed = records["test_crosses"]
    assert "was crossed" in crossed.failure
    (verdict,) = crossed.verdicts
    assert (verdict.kind, [figure.measured for figure in verdict.figures]) == ("crossed", [80, 80])
    (verdict,) = records["test_passes"].verdicts
    assert (verdict.kind, [figure.expected for figure in verdict.figures]) == ("met", [1000, 1000])
    assert [reading.memory.params for reading in crossed.readings] == [80, 80]
    assert not find_spec("syrupy") or records["test_snapshot"].snapshots == (
        SnapshotRecord(
            name="pair",
            file="snapshots/test_it/test_snapshot[world2]@cpu.json",
            outcome="missing",
            ranks={"ranks 0-1": [1, 2]},
            torch=version("torch").partition("+")[0],
        ),
    )
    assert crossed.spec.size == 2
    assert crossed.seconds > 0
    assert WorldRecord.from_json(crossed.to_json()) == crossed


def report(when, outcome="passed", nodeid="test_it.py::test[world2]"):
    its = pytest.TestReport(
        nodeid=nodeid, location=("test_it.py", 0, nodeid), keywords={}, outcome=outcome,
        longrepr="why" if outcome == "failed" else None, when=when,
    )  # fmt: skip
    attach(its, WorldSpec(size=2), {}, ())
    return its


@pytest.mark.parametrize(
    ("heard", "kept"),
    [
        (["setup"], []),
        (["setup", "call"], []),
        (["setup", "call", "teardown"], ["passed"]),
        (["setup", "call failed"], ["failed"]),
        (["setup failed"], ["error"]),
        (["setup", "call failed", "teardown", "setup"], []),
        (["setup", "call failed", "teardown", "setup", "call", "teardown"], ["passed"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_test_that_did_not_end_has_not_passed(heard, kept):
    records = Records()
    for when, _, outcome in (text.partition(" ") for text in heard):
        records.add(report(when, outcome or "passed"))
    assert [record.outcome for record in records.all()] == kept
