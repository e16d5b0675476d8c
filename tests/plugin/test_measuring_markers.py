"""Peaks, collectives and saved activations held by markers: what passes, and each way to fail."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

import pytest

HEADER = """
    import pytest, torch
    import torch.distributed as dist
    from pytest_shardcheck import max_collectives, max_memory, max_saved_activations

    pytestmark = pytest.mark.world_size(2)
    MIB = 1 << 20

    def allocate(bytes):
        return torch.empty(bytes, dtype=torch.uint8)

    def run(shardcheck, *watched, region="step"):
        # One MiB is left, two more live at the peak; an all_reduce of 40 B; a backward that saves
        # 40 B in forward.
        with shardcheck.measure(*watched, region=region) as reading:
            left = allocate(MIB)
            allocate(2 * MIB)
            leaf = torch.ones(10, requires_grad=True)
            total = leaf.exp().sum()
            total.backward()
            dist.all_reduce(torch.ones(10))
            del leaf, total
        return reading, left
"""


@dataclass(frozen=True)
class Case:
    """An inner test under one or more marks, and what its failure must say; nothing: it passes."""

    name: str
    marks: str
    says: tuple[str, ...] = ()
    body: str = "run(shardcheck)"
    arguments: str = "process_group, shardcheck"

    @property
    def source(self) -> str:
        marks = "".join(f"@pytest.mark.{mark}\n" for mark in self.marks.splitlines())
        return f"{marks}def test_{self.name}({self.arguments}):\n    {self.body}\n"


# What is alive at once: both allocations and nothing else of size.
PEAK = 3 * (1 << 20)
SAVED = "saved_activations(bytes=40, count=1)"
CASES = [
    # Peaks, live bytes, growth
    Case("peak", f"max_memory({PEAK})\nmemory(peak={PEAK})"),
    Case(
        "peak_by_a_byte",
        f"max_memory({PEAK - 1})",
        (
            "max_memory(peak): the ceiling of 3,145,727 B (3.1 MB) was crossed in region 'step'",
            "ranks 0-1: 3,145,728 B (3.1 MB), 1 B (less than 0.1 %) above",
            "at the peak: temporaries 3,145,728 B",
            "first above it: aten.empty.memory_format in forward, 3,145,728 B then alive, at test_",
            "2,097,152 B uint8 [2097152] temporaries, at test_",
            'peak="3.15 MB"',
        ),
    ),
    Case("live", f"memory(live={1 << 20}, growth={1 << 20}, peak_above_start={PEAK})"),
    Case(
        "growth",
        "max_memory(growth=0)",
        ("growth): the ceiling of 0 B", "left behind:", "1,048,576 B uint8 [1048576]"),
    ),
    Case("phase_peak", f"max_memory({PEAK}, phase='forward')"),
    Case(
        "phase_peak_by_a_byte",
        f"max_memory({PEAK - 1}, phase='forward')",
        ("max_memory(peak, phase='forward'): the ceiling of",),
    ),
    Case(
        "phase_unmatched",
        "max_memory('1 GB', phase='optimizer')",
        ("no optimizer ran; the phases were 'forward', 'backward'",),
    ),
    Case("allocated", f"max_memory(allocated={PEAK + 100_000})"),
    Case(
        "allocated_crossed", "max_memory(allocated=1000)", ("max_memory(allocated): the ceiling",)
    ),
    Case(
        "allocated_in_a_thread",
        "max_memory(allocated='1 MB')",
        ("other threads allocated tensors in this test; judge peak instead",),
        """import threading
    with shardcheck.measure():
        thread = threading.Thread(target=lambda: allocate(4 * MIB))
        thread.start()
        thread.join()""",
    ),
    Case("reserved", "max_memory(reserved=1)", ("only CUDA's allocator reserves memory",)),
    Case("elsewhere", "max_memory(peak=1, device='cuda')", ("was 0 on every judged rank",)),
    # Collectives
    Case("collectives", "collectives(all_reduce=1)"),
    Case("ignored", "collectives(ignore='all_reduce')"),
    Case(
        "one_more",
        "collectives",
        (
            "collectives(all_reduce): 0 calls were expected and not measured in region 'step'",
            "ranks 0-1: 1 call, 1 more",
            "1 x all_reduce of float32 [10] (40 B) in group 'world', forward at test_",
            "all_reduce=1",
        ),
    ),
    Case(
        "one_fewer",
        "collectives(all_reduce=2)",
        ("2 calls were expected", "ranks 0-1: 1 call, 1 fewer"),
    ),
    Case("not_named", "collectives(broadcast=0)", ("collectives(all_reduce): 0 calls",)),
    Case(
        "ceilings", "max_collectives(count=1, bytes=40, wire_bytes=40, largest={'all_reduce': 40})"
    ),
    Case(
        "bytes_by_one", "max_collectives(bytes=39)", ("max_collectives(bytes): the ceiling of 39",)
    ),
    Case("group", "collectives(all_reduce=1, group='world')"),
    Case(
        "group_misspelt",
        "collectives(all_reduce=1, group='wrld')",
        ("no process group 'wrld' (did you mean 'world'?); the groups were 'world'",),
    ),
    Case("phases_of_calls", "collectives(all_reduce=1, phase='forward')"),
    Case(
        "wrong_phase",
        "collectives(all_reduce=1, phase='backward')",
        ("collectives(all_reduce, phase='backward'): 1 call was expected",),
    ),
    # Saved activations
    Case("saved", SAVED),
    Case(
        "saved_by_a_byte",
        "max_saved_activations(bytes=39)",
        ("max_saved_activations(bytes): the ceiling of 39 B", "40 B, 1 B (2.6 %) above"),
    ),
    Case("saved_by_one", "max_saved_activations(count=0)", ("1 tensor, 1 more",)),
    Case("saved_phase", "saved_activations(bytes=40, phase='forward')"),
    # A marker has the hooks in place before the region: what it holds from before counts.
    Case(
        "backward_alone",
        "saved_activations(bytes=40)",
        (),
        """loss = torch.ones(10, requires_grad=True).exp().sum()
    with shardcheck.measure():
        loss.backward()""",
    ),
    Case(
        "backward_of_nothing",
        "timeout(0)",
        ("backward ran and nothing was packed in the region",),
        """loss = torch.ones(10, requires_grad=True).exp().sum()
    with shardcheck.measure() as reading:
        loss.backward()
    shardcheck.check(reading, max_saved_activations(bytes=0))""",
    ),
    Case("nothing_saved", "saved_activations(count=0, packed=0)", (), "allocate(10)"),
    Case(
        "vacuous",
        "max_saved_activations(bytes=40)",
        ("bytes was 0 on every judged rank",),
        "allocate(10)",
    ),
    # Narrowings
    Case("rank", "max_memory(1, rank=1)", ("max_memory(peak, rank=1)", "rank 1: 3,145,728 B")),
    Case("no_such_rank", "collectives(rank=2)", ("rank 2 is not in this world of ranks 0-1",)),
    Case(
        "region_misspelt",
        "collectives(all_reduce=1, region='stp')",
        ("the judged ranks opened no region 'stp' (did you mean 'step'?)",),
    ),
    Case("by_size", f"max_memory({{2: {PEAK}}})\nsaved_activations(count={{2: 1}})"),
    Case("callable", f"max_memory(lambda world: {PEAK} * world.size // 2)"),
    Case("body", f"max_memory({PEAK})\n{SAVED}\ncollectives(all_reduce=1)", (), "run_body()"),
    Case(
        "body_crossed",
        "max_memory(1)\nsaved_activations(count=2)\ncollectives",
        ("in region 'body'", "count): 2 tensors were", "all_reduce): 0 calls"),
        "run_body()",
    ),
    Case(
        "unwatched",
        "max_memory(optimizer=1)",
        ("no optimizer was watched, so optimizer can't be known",),
    ),
    # In the body
    Case(
        "check",
        "timeout(0)",
        ("max_collectives(count): the ceiling of 0 calls was crossed",),
        """reading, _ = run(shardcheck)
    shardcheck.check(reading, max_memory(3 * MIB), max_saved_activations(count=1))
    shardcheck.check(reading, max_collectives(count=0))""",
    ),
    Case(
        "one_rank_differs",
        "collectives(all_reduce=1, barrier=0)\nmax_memory(growth=0)",
        ("rank 1: 4,096 B", "rank 0: 0 B, as expected"),
        """with shardcheck.measure():
        dist.all_reduce(torch.ones(1))
        kept = allocate(4096) if dist.get_rank() else None""",
    ),
]

REST = """
    def run_body():
        left = allocate(MIB)
        allocate(2 * MIB)
        leaf = torch.ones(10, requires_grad=True)
        leaf.exp().sum().backward()
        dist.all_reduce(torch.ones(10))
        globals()["kept"] = left

    @pytest.mark.collectives(all_reduce=1)
    @pytest.mark.max_memory(3 * MIB)
    class TestClosest:
        def test_class_level(self, process_group, shardcheck):
            run(shardcheck)

        @pytest.mark.collectives(barrier=1)
        def test_closest_wins(self, process_group, shardcheck):
            with shardcheck.measure():
                dist.barrier()

        @pytest.mark.parametrize(
            "count",
            [
                pytest.param(1, marks=pytest.mark.max_collectives(count=1), id="fits"),
                pytest.param(2, marks=pytest.mark.max_collectives(count=1), id="crosses"),
            ],
        )
        @pytest.mark.collectives(ignore="all_reduce")
        def test_param(self, process_group, shardcheck, count):
            with shardcheck.measure():
                for _ in range(count):
                    dist.all_reduce(torch.ones(1))
"""


UNDER_XDIST = [case for case in CASES if "by_a_byte" in case.name or "one" in case.name]


def text(cases: list[Case]) -> str:
    return "\n".join([dedent(HEADER), dedent(REST), *(case.source for case in cases)])


@pytest.fixture(scope="module")
def session(run_session):
    return run_session({"test_inner.py": text(CASES)}, "-rA")


@pytest.fixture(scope="module")
def session_under_xdist(run_session):
    pytest.importorskip("xdist")
    return run_session({"test_inner.py": text(UNDER_XDIST)}, "-rA", "-n", "2")


@pytest.mark.parametrize("case", UNDER_XDIST, ids=lambda case: case.name)
def test_marker_under_xdist(session_under_xdist, case):
    check(session_under_xdist, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_marker(session, case):
    check(session, case)


def check(session, case):
    name = f"test_{case.name}[world2]"
    expected = "FAILED" if case.says else "PASSED"
    assert session.results.get(name) == [expected], session.out
    if case.says:
        failure = session.failure(name)
        for part in case.says:
            assert part in failure


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("TestClosest.test_class_level[world2]", "PASSED"),
        ("TestClosest.test_closest_wins[world2]", "PASSED"),
        ("TestClosest.test_param[world2-fits]", "PASSED"),
        ("TestClosest.test_param[world2-crosses]", "FAILED"),
    ],
)
def test_levels(session, name, word):
    assert session.results[name] == [word], session.out


def test_a_misspelt_argument_ends_collection(run_session):
    session = run_session(
        {
            "test_it.py": """
                import pytest

                @pytest.mark.world_size(2)
                @pytest.mark.collectives(allreduce=1)
                def test_it():
                    pass

                @pytest.mark.world_size(2)
                @pytest.mark.max_saved_activations(bytes="3 XB")
                def test_other():
                    pass
            """
        }
    )
    assert session.returncode == pytest.ExitCode.INTERRUPTED
    assert "collectives(allreduce=1): there is no argument 'allreduce' (did you mean" in session.out
    assert "max_saved_activations(bytes='3 XB'): '3 XB' has no unit that is known" in session.out
