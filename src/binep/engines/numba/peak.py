"""How fast this machine counts bits: the upper bound of dense arithmetic on packed bits."""

import time

import numpy as np
import torch

from binep.engines.numba.jit import kernel, run_shares
from binep.engines.numba.simd import popcount

WORDS = 1024  # of each factor: both stay in the first level of cache


@kernel
def count_share(one, other, rounds, threads, thread):
    """`popcount(one & other)` over and over, with `other` shifted by a word each round."""
    total = np.uint64(0)
    for r in range(rounds):
        shifted = other[(r + thread) % len(one) :]
        for w in range(len(one)):
            total += popcount(one[w] & shifted[w])
    return total


def bit_products_a_second(seconds: float = 0.3) -> float:
    """Products of two bits, summed, per second and over all threads."""
    source = np.random.default_rng(0)
    one, other = (source.integers(2**63, size=n, dtype=np.uint64) for n in (WORDS, 2 * WORDS))
    run_shares(count_share, one, other, 1)
    rounds, best = 20_000, 0.0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        run_shares(count_share, one, other, rounds)
        products = 64 * WORDS * rounds * torch.get_num_threads()
        best = max(best, products / (time.perf_counter() - started))
    return best
