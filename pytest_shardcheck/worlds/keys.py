"""What the plugin and the worlds keep on pytest's objects; cheap to import, so that all can.

The keys of what crosses modules are here, and loaded with the plugin: an in-process ``pytester``
session forgets the modules that were imported in it, and a second copy would have other keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_shardcheck.expectations import Expectation
    from pytest_shardcheck.vocabulary.specs import WorldSpec
    from pytest_shardcheck.worlds.rank import RankContext

# On a configuration: it belongs to a nursery or a rank. Set before pytest_configure runs.
IN_CHILD: Final = pytest.StashKey[bool]()
# On a configuration: the rank that this process is.
RANK: Final[pytest.StashKey[RankContext]] = pytest.StashKey()
# On an item: its id as collection gave it, since a hook may change it (xdist's loadgroup does).
NODEID: Final = pytest.StashKey[str]()
# On an item: its world, and the expectations that hold there.
SPEC: Final[pytest.StashKey[WorldSpec]] = pytest.StashKey()
# All world sizes that the test runs at.
SIZES: Final[pytest.StashKey[Sequence[int]]] = pytest.StashKey()
EXPECTATIONS: Final[pytest.StashKey[Sequence[Expectation]]] = pytest.StashKey()
# On an item: it carries a measuring marker or requests ``shardcheck``.
TRACKED: Final = pytest.StashKey[bool]()
