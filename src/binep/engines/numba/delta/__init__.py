"""Real activations on the CPU: what a step changes is sent in eight bits, until nothing changes."""

from binep.engines.numba.delta.engine import DeltaEngine

__all__ = ["DeltaEngine"]
