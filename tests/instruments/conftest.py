"""The instruments of one process, started and stopped."""

from __future__ import annotations

import pytest

from pytest_shardcheck.instruments.saved_activations import SavedActivations
from pytest_shardcheck.instruments.surroundings import Surroundings


@pytest.fixture
def surroundings():
    surroundings = Surroundings()
    surroundings.start()
    yield surroundings
    surroundings.stop()


@pytest.fixture
def saved(surroundings):
    return SavedActivations(surroundings)
