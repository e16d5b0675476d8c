"""Which files are nobody's any more. Pure.

A file is unused where its test ran to a good end and took no such snapshot, or where there is no
such test any more. Nothing is said of a test that was skipped, deselected, failed or never reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeAlias

from pytest_shardcheck.snapshots.layout import split_file_name

Owner: TypeAlias = tuple[PurePosixPath, str]  # the folder of a test file, and a test's stem


@dataclass(kw_only=True)
class Ownership:
    """What a session knows of the tests that may own a file.

    `ended` maps tests that ended well to their variant (None: it can't be known), `collected` are
    all that were found, `files` the test files that were collected to the end, `troubled` those
    that were not. `partial` says that only some tests of a file were looked for.
    """

    collected: set[Owner] = field(default_factory=set)
    ended: dict[Owner, str | None] = field(default_factory=dict)
    files: set[PurePosixPath] = field(default_factory=set)
    troubled: set[PurePosixPath] = field(default_factory=set)
    partial: bool = False

    def may_be_unused(
        self, folder: PurePosixPath, name: str, has_test_file: Callable[[PurePosixPath], bool]
    ) -> bool:
        """Tell whether a file of that folder and name is unused if no test of this session used it.

        `has_test_file` tells whether a folder's test file is still there.
        """
        split = split_file_name(name)
        if split is None:
            return False
        stem, variant = split
        owner = (folder, stem)
        if owner in self.ended:
            return self.ended[owner] == variant
        if owner in self.collected or self.partial:
            return False
        if folder in self.files:
            return folder not in self.troubled
        return not has_test_file(folder)
