"""Count the runs of autograd, whoever started them.

Autograd numbers its runs. Between two runs of our own, a gap in the numbers is somebody else's:
`backward`, `autograd.grad`, a reentrant checkpoint or C++. Nothing that is called in a run would
do: a backward for which nothing was saved unpacks nothing.
"""

from __future__ import annotations

import threading

import torch

from ._torch_private import graph_task, run_backward, unseen_by_modes

_lock = threading.Lock()
_ours = 0


class _Probe:
    """A graph of one node, and the number of its last run."""

    def __init__(self) -> None:
        self._number = 0
        # A test may run under inference mode or without gradients.
        with torch.inference_mode(mode=False), torch.enable_grad(), unseen_by_modes():
            self._leaf = torch.ones((), requires_grad=True, device="cpu")
            self._output = self._leaf.view(())
            self._gradient = torch.ones((), device="cpu")
            self._output.register_hook(self._runs)  # type: ignore[no-untyped-call]

    def run(self) -> int:
        with unseen_by_modes():
            run_backward(self._output, self._leaf, self._gradient)
        return self._number

    def _runs(self, _: object) -> None:
        self._number = graph_task()


_probe: _Probe | None = None


def autograd_runs() -> int:
    """Return how many runs began in this process so far, our own left out; only differences of
    two answers mean anything."""
    global _ours, _probe  # noqa: PLW0603 # autograd's own number is the process's too
    with _lock:
        if _probe is None:
            _probe = _Probe()
        _ours += 1
        return _probe.run() - _ours
