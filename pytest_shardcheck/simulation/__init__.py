"""What makes a process a rank of a world that is not there: fake tensors, groups without peers.

One file for each thing that a lone rank lacks. Everything that is replaced in torch is put back
when the simulation ends. Runs in a rank, and imports nothing of the session's side.
"""

from .simulated import simulation

__all__ = ["simulation"]
