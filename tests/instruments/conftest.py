"""The instruments of one process, started and stopped."""

from __future__ import annotations

import gc

import pytest

from pytest_shardcheck.instruments.saved_activations import SavedActivations
from pytest_shardcheck.instruments.surroundings import Surroundings


@pytest.fixture(scope="module", autouse=True)
def _only_a_tests_own_garbage():
    """Regions collect garbage: as in ranks, not through all that there is."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def surroundings():
    surroundings = Surroundings()
    surroundings.start()
    yield surroundings
    surroundings.stop()


@pytest.fixture
def saved(surroundings):
    return SavedActivations(surroundings)
