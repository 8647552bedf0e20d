"""Compiled kernels kept on disk by Numba, in files that may be damaged, or have no room.

Numba takes what it finds there at its word: an empty file, as a full disk or a crash leaves it,
ended every later process. Here what cannot be read is compiled again, and what cannot be written is
not kept.
"""

from contextlib import suppress
from typing import Any

from numba.core.caching import FunctionCache


class KernelCache(FunctionCache):
    """Numba's cache of one function, which is only ever a help."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A compiled variant; None if there is none that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling and linking make of damage
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled variant, if that can be done."""
        try:
            super().save_overload(sig, data)
        except Exception:  # its index may be damaged, or the disk full
            with suppress(Exception):
                self.flush()


def keep(dispatcher: Any) -> Any:
    """Let a kernel be kept where Numba would keep it; returns the kernel."""
    dispatcher._cache = KernelCache(dispatcher.py_func)
    return dispatcher
