"""Tell whether code that torch.compile's inductor made has run: its memory has no operators.

Inductor's kernels allocate without any dispatch, so storages that only they touch are never
counted: a peak beside them would be too low, and a ceiling over it would hold by mistake. What
they leave alive may be met later or never, so live memory is unmeasured from then on, to the end
of the test. A backend that runs torch's operators ("eager", "aot_eager") is counted as they are.

Nothing of the compiler is imported here: where nobody has loaded it, nothing is looked at.

Limits: kernels of other compilers, and of ahead-of-time packages, are not noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._torch_private import inductor_graph_class, inductor_modules, watch_calls

if TYPE_CHECKING:
    from collections.abc import Callable

WHY: Final = (
    "inductor's compiled code ran in this test, and what it allocates inside is no operator's, so "
    'the counter can\'t see it; judge allocated= instead, or compile with backend="aot_eager"'
)


class CompiledCode:
    """Look for inductor's graphs between `start` and `stop`."""

    def __init__(self) -> None:
        """Follow nothing yet."""
        self._ran = False
        self._modules = 0
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin with what is compiled by now."""
        self._modules = inductor_modules()
        self._follow()

    def stop(self) -> None:
        """Undo what following did."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def why_unmeasured(self) -> str:
        """Say why live memory can't be known; "" while it can. Ask where a region begins and ends.

        Where inductor was loaded since the last look, its calls were not followed yet: that it has
        made code then means that the code ran.
        """
        if self._undo is None:
            self._follow()
            self._ran |= inductor_modules() > self._modules
        return WHY if self._ran else ""

    def _follow(self) -> None:
        graph = inductor_graph_class()
        if graph is not None:
            self._undo = watch_calls(graph, self._called)

    def _called(self) -> None:
        self._ran = True
