"""The public names: whoever changes one of these lists changes what users have written."""

from __future__ import annotations

import inspect

import pytest

import pytest_shardcheck
from pytest_shardcheck import plugin
from pytest_shardcheck.plugin import fixtures
from pytest_shardcheck.plugin.handle import Shardcheck
from pytest_shardcheck.plugin.place import World


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Load every plugin as pytest does: by its entry point."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.delenv("PYTEST_PLUGINS")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:asyncio")  # which warns of its own configuration
    return pytester


def test_markers(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure()
    plain = pytester.parseconfigure("-p", "no:shardcheck")

    theirs = set(plain.getini("markers"))
    added = [line for line in config.getini("markers") if line not in theirs]

    assert {line.partition("(")[0] for line in added} == {
        "world_size",
        "memory",
        "max_memory",
        "collectives",
        "max_collectives",
        "saved_activations",
        "max_saved_activations",
        "cuda",
    }


def test_markers_are_known_under_strict_markers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        @pytest.mark.memory(params=1)
        @pytest.mark.max_memory(params=1)
        @pytest.mark.collectives()
        @pytest.mark.max_collectives(count=1)
        @pytest.mark.saved_activations(count=1)
        @pytest.mark.max_saved_activations(count=1)
        @pytest.mark.world_size(2)
        def test_it():
            pass
        """
    )

    result = pytester.runpytest("--collect-only", "-q", "--strict-markers")

    assert result.ret == pytest.ExitCode.OK


def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")

    result = pytester.runpytest("--fixtures", "-q", "-v")

    names = {
        line.split()[0]
        for line in result.outlines
        if "pytest_shardcheck" in line and " -- " in line and line[0] != "-"
    }
    assert names == {"process_group", "device_mesh", "world", "shardcheck"}
    assert set(fixtures.NAMES) == names == set(plugin.__all__)


def test_fields_of_world() -> None:
    assert [*World.__dataclass_fields__] == [
        "rank",
        "size",
        "local_rank",
        "backend",
        "device",
        "mesh",
        "simulated",
        "tmp_path",
    ]


def test_methods_of_shardcheck() -> None:
    methods = {
        name: str(inspect.signature(method)).partition(" ->")[0]
        for name, method in inspect.getmembers(Shardcheck, inspect.isfunction)
        if not name.startswith("_")
    }

    assert methods == {
        "check": "(self, reading: 'Reading | Measurement', *expectations: 'Expectation')",
        "gather": "(self, reading: 'Reading | Measurement')",
        "snapshot": "(self, reading_or_value: 'object', name: 'str | None' = None, "
        "only: 'str | Iterable[str] | None' = None, "
        "exclude: 'str | Iterable[str] | None' = None, tolerance: 'object' = None)",
        "measure": "(self, *watched: 'object', region: 'str' = 'step', **named: 'object')",
        "start": "(self, *watched: 'object', region: 'str' = 'step', **named: 'object')",
        "stop": "(self)",
        "watch": "(self, *things: 'object', **named: 'object')",
    }


def test_options_and_ini_values(pytester: pytest.Pytester) -> None:
    with_it, without_it = (pytester.parseconfig(*args) for args in ((), ("-p", "no:shardcheck")))

    options = set(vars(with_it.option)) - set(vars(without_it.option))
    ini = set(with_it._parser._inidict) - set(without_it._parser._inidict)

    assert options == {
        "shardcheck_timeout",
        "shardcheck_start",
        "shardcheck_max_ranks",
        "shardcheck_report",
        "shardcheck_json",
        "require_cuda",
        "shardcheck_snapshot_tolerance",
        "shardcheck_html",
        "shardcheck_trace",
    }
    assert ini == {
        "shardcheck_snapshot_tolerance",
        "shardcheck_snapshot_dir",
        "shardcheck_snapshot_variant",
        "shardcheck_timeout",
        "shardcheck_start",
        "shardcheck_max_ranks",
        "shardcheck_report",
        "shardcheck_json",
        "shardcheck_junit_properties",
        "shardcheck_require_cuda",
        "shardcheck_html",
        "shardcheck_trace",
        "shardcheck_world_size",
        "shardcheck_threads",
    }


def test_package() -> None:
    assert sorted(pytest_shardcheck.__all__) == [
        "Call",
        "CollectivesReading",
        "Crossing",
        "DeadRankError",
        "HarnessError",
        "Held",
        "HungRankError",
        "LiveBytes",
        "MemoryReading",
        "NoValueError",
        "PhaseReading",
        "RankFailedError",
        "Reading",
        "SavedBytes",
        "SavedReading",
        "ShardcheckError",
        "StateBytes",
        "TensorRecord",
        "UnmetExpectationError",
        "UsageError",
        "Volume",
        "WorldSpec",
        "collectives",
        "expect",
        "max_collectives",
        "max_memory",
        "max_saved_activations",
        "memory",
        "plan",
        "saved_activations",
    ]
    for name in pytest_shardcheck.__all__:
        assert hasattr(pytest_shardcheck, name)
