"""Binary activations on the CPU: bits packed 64 a word, and work only where a bit changes."""

from binep.engines.numba.packed.engine import PackedEngine

__all__ = ["PackedEngine"]
