"""None of the neighbours: what they add is missed nowhere."""

from __future__ import annotations

NEIGHBOURS = (
    *("anyio", "asyncio", "benchmark", "html", "html_fixtures", "instafail", "metadata"),
    *("pytest_cov", "randomly", "repeat", "rerunfailures", "subtests", "sugar", "syrupy"),
    *("timeout", "unittest", "xdist", "xdist.looponfail"),
    *("cacheprovider", "junitxml", "faulthandler", "pastebin", "stepwise"),
)
WORLDS = """
    import sys
    import pytest
    import pytest_shardcheck as shardcheck_errors
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_passes(process_group, request, tmp_path):
        dist.barrier()
        names = {name for name, plugin in request.config.pluginmanager.list_name_plugin() if plugin}
        assert not names & {"asyncio", "randomly", "timeout", "xdist", "pytest_cov", "syrupy"}
        # Nor has anything of ours imported them.
        for module in ("coverage", "pytest_cov", "syrupy", "xdist", "pytest_benchmark"):
            assert module not in sys.modules

    @pytest.mark.world_size(2)
    @pytest.mark.max_memory(params=0)
    def test_fails(shardcheck, world):
        print(f"printed by {world.rank}")
        assert world.rank == 0

    @pytest.mark.world_size(2)
    def test_snapshot(shardcheck):
        with pytest.raises(shardcheck_errors.UsageError, match="syrupy, which .* is switched off"):
            shardcheck.snapshot(1)

    def test_plain():
        for module in ("coverage", "pytest_cov", "syrupy", "xdist", "pytest_benchmark"):
            assert module not in sys.modules
"""


def test_with_none_of_them(run_session):
    absent = [argument for name in NEIGHBOURS for argument in ("-p", f"no:{name}")]
    session = run_session({"test_alone.py": WORLDS}, "-rA", *absent)
    assert "plugins: shardcheck-" in session.out
    assert session.results == {
        "test_passes[world2]": ["PASSED"],
        "test_fails[world2]": ["FAILED"],
        "test_snapshot[world2]": ["PASSED"],
        "test_plain": ["PASSED"],
    }
    failure = session.failure("test_fails[world2]")
    assert "rank 1 of 2 failed in its call" in failure
    assert "printed by 1" in failure
    # -p no:cacheprovider: no file at all.
    left = {path.name for path in session.temporary.parent.iterdir()} - {"__pycache__"}
    assert left == {"pytest.ini", "temporary", "test_alone.py"}
    assert session.processes_left() == []
    assert session.files_left() == []
