"""Each private interface of pytest-benchmark that we use is still there, by name."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pytest_benchmark")

from pytest_benchmark import fixture, plugin, session, stats

from pytest_shardcheck.benchmark import _private
from pytest_shardcheck.benchmark.fixture import TogetherBenchmark

Fixture = fixture.BenchmarkFixture


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_all_that_we_replace_is_called_by_what_we_keep():
    raw = inspect.getsource(Fixture._raw)
    assert "self._make_runner(function_to_benchmark, args, kwargs)" in raw
    assert "duration, iterations, loops_range = self._calibrate_timer(runner)" in raw
    assert "rounds = ceil(self._max_time / duration)" in raw
    assert "function_result = function_to_benchmark(*args, **kwargs)" in raw
    assert "self._raw(function_to_benchmark" in inspect.getsource(Fixture.__call__)
    assert "self._raw_pedantic(" in inspect.getsource(Fixture.pedantic)
    assert "duration, result = runner(loops_range)" in inspect.getsource(Fixture._raw_pedantic)
    assert parameters(Fixture._make_runner) == ["self", "function_to_benchmark", "args", "kwargs"]
    assert parameters(Fixture._save_cprofile) == ["self", "profile"]
    for name in vars(TogetherBenchmark):
        if not name.startswith("__") and name not in OURS:
            assert callable(getattr(Fixture, name)), name


OURS = {"to_report", "_begin", "_follow", "_together", "_announce", "_exchange"}


def test_pedantic_takes_its_numbers_by_these_names():
    numbers = {"rounds", "warmup_rounds", "iterations"}
    assert numbers < set(parameters(Fixture._raw_pedantic))
    assert numbers < set(parameters(Fixture.pedantic))


def test_a_runner_returns_seconds_and_without_a_range_the_result():
    class Bare(Fixture):
        def __init__(self):
            self._timer, self._disable_gc = iter(range(9)).__next__, False

    runner = Bare()._make_runner(len, ("text",), {})
    assert runner(range(3)) == 1
    assert runner(None) == (1, 4)


def test_nobody_uses_attributes_of_our_names():
    text = inspect.getsource(fixture) + inspect.getsource(plugin)
    for name in ("_context", "_meeting", "_what", "_decides", "_round_s", "_inside", "_completed"):
        assert f".{name}\n" not in text
        assert f".{name} " not in text


def test_metadata_reads_what_a_result_has():
    result = _private.Result(
        name="test_it[world2]",
        fullname="test_file.py::test_it[world2]",
        group="steps",
        param="world2",
        params={"world": "world2"},
        extra_info={"world_size": 2},
        options={"min_rounds": 5},
        iterations=10,
        seconds=[1.0, 3.0],
        cprofile_stats=_private.profile_from([[["file.py", 3, "f"], [1, 2, 0.5, 0.75]]]),
    )
    added = []
    session_of = type("Session", (), {"benchmarks": added})
    manager = type(
        "Manager", (), {"getplugin": lambda _, name: {_private.SESSION: session_of}[name]}
    )
    _private.add_result(type("Config", (), {"pluginmanager": manager()}), result)
    (metadata,) = added
    assert metadata
    assert not metadata.has_error
    assert metadata["mean"] == 2.0
    written = metadata.as_dict()
    assert written["stats"] | {"rounds": 2, "iterations": 10, "max": 3.0} == written["stats"]
    assert written["extra_info"] == {"world_size": 2}
    assert written["params"] == {"world": "world2"}
    assert written["options"] == {"min_rounds": 5}
    (profiled,) = written["cprofile"]
    assert (profiled["function_name"], profiled["ncalls"]) == ("file.py:3(f)", 2)


def test_the_session_is_a_plugin_with_a_list(request):
    plugins = request.config.pluginmanager
    if not plugins.has_plugin("benchmark"):
        pytest.skip("pytest-benchmark is switched off")
    assert isinstance(plugins.getplugin(_private.SESSION), session.BenchmarkSession)
    assert isinstance(plugins.getplugin(_private.SESSION).benchmarks, list)


def test_times_are_kept_in_a_list():
    kept = stats.Stats()
    kept.update(1.5)
    assert kept.data == [1.5]


def test_instrumentation_is_paused():
    assert callable(fixture.PauseInstrumentation)
    with _private.paused():
        pass
