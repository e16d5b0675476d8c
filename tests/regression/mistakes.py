"""The failing side: a mistake that people make, and what our message says of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_shardcheck import UnmetExpectationError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def caught(*says: str) -> Iterator[None]:
    """Expect that a `shardcheck.check` in the block fails, and that its message says all this."""
    with pytest.raises(UnmetExpectationError) as failure:
        yield
    message = str(failure.value)
    missing = [part for part in says if part not in message]
    assert not missing, f"{missing} not said in:\n{message}"
