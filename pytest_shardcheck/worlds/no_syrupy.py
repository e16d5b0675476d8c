"""A rank has no fixture of syrupy's: while updating it would pass and write nothing."""

from __future__ import annotations

from typing import Final, NoReturn

import pytest

from pytest_shardcheck.vocabulary.errors import UsageError

ADVICE: Final = (
    "each rank would compare, and write, on its own. Write shardcheck.snapshot(value) with the "
    "fixture 'shardcheck': the session holds all ranks against one file"
)


class NoSyrupyFixture:
    """Stands before syrupy's fixture; registered where that is, before a child collects.

    Collection refuses the fixture where it sees it: not behind a user's fixture of the same name,
    nor behind ``request.getfixturevalue``.
    """

    @pytest.fixture
    def snapshot(self) -> NoReturn:
        """Fail with what to write instead."""
        raise UsageError(f"the fixture 'snapshot' in a world test: {ADVICE}")
