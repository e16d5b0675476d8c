"""What the tests of the plugin share: how to see what an inner session collects."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Leave other plugins out of inner sessions that don't name them: each imports them anew."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_shardcheck.plugin")
    return pytester


@pytest.fixture
def ids_of(pytester: pytest.Pytester) -> Callable[..., list[str]]:
    """Return a function that gives the ids an inner session would run, in its order."""

    def collect(*args: str) -> list[str]:
        result = pytester.runpytest("--collect-only", "-q", "-p", "no:randomly", *args)
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return [line for line in result.outlines if "::" in line]

    return collect
