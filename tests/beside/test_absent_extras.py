"""Without one of the extras the rest works, and what needs it says what to install."""

from __future__ import annotations

import pytest

# As if it were not installed: no import finds it, in no process, and pytest loads no plugin of it.
BLOCKER = """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == ABSENT:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent())
"""
SUITE = """
    import importlib
    import pytest
    import torch
    import torch.distributed as dist

    def test_plain():
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(ABSENT)

    @pytest.mark.world_size(2)
    @pytest.mark.max_memory(params=272)
    @pytest.mark.collectives(barrier=1)
    def test_world(process_group, shardcheck):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(ABSENT)
        with shardcheck.measure(torch.nn.Linear(16, 4)):
            dist.barrier()

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.rank == 0
"""
NEEDS = {
    "pytest_benchmark": """
        import pytest

        @pytest.mark.world_size(2)
        def test_needs_it(benchmark):
            benchmark(len, "text")
    """,
}
MESSAGES = {
    "pytest_benchmark": "test_needs_it[world2]: the fixture 'benchmark' is that of "
    "pytest-benchmark, which is not installed or switched off. Install it with: "
    "pip install 'pytest-shardcheck[benchmark]'",
}
PLUGINS = {
    "syrupy": ("syrupy",),
    "pytest_benchmark": ("benchmark",),
    "xdist": ("xdist", "xdist.looponfail"),
    "matplotlib": (),
}


def suite_without(name: str) -> tuple:
    files = {"blocker.py": BLOCKER, "test_suite.py": SUITE}
    if name in NEEDS:
        files["test_needs.py"] = NEEDS[name]
    files = {file: text.replace("ABSENT", repr(name)) for file, text in files.items()}
    off = [f"-pno:{plugin}" for plugin in PLUGINS[name]]
    return files, "-pblocker", *off, "-rA", "--continue-on-collection-errors"


@pytest.mark.parametrize("names", [list(PLUGINS)[:2], list(PLUGINS)[2:]], ids=" ".join)
def test_the_rest_works_without(names, run_two_sessions):
    for name, session in zip(names, run_two_sessions(*map(suite_without, names)), strict=True):
        expected = {
            "test_plain": ["PASSED"],
            "test_world[world2]": ["PASSED"],
            "test_fails[world2]": ["FAILED"],
        }
        assert {test: session.results.get(test) for test in expected} == expected, session.out
        assert "rank 1 of 2 failed in its call" in session.failure("test_fails[world2]")
        assert session.outcomes.get("error", 0) == (name in MESSAGES)
        if name in MESSAGES:
            assert MESSAGES[name] in session.out
        assert session.processes_left() == []
