"""What convolutions still need of the kernels by their former names."""

import triton
import triton.language as tl

from binep.engines.cuda.rules import down_from_few as thin_product
from binep.engines.cuda.rules import up_to_few as thin_sums

__all__ = ["BLOCK", "moved", "thin_product", "thin_sums"]

BLOCK = 1024


@triton.jit
def moved(
    s,
    drive,
    nudge,
    threshold,
    sigma,
    slope,
    ENERGY: tl.constexpr,
    NUDGED: tl.constexpr,
    CLAMPED: tl.constexpr,
):
    """A prototypical state one step later."""
    s = tl.minimum(tl.maximum(drive, 0.0), 1.0)
    if NUDGED:
        s = s + nudge
        if CLAMPED:
            s = tl.minimum(tl.maximum(s, 0.0), 1.0)
    return s
