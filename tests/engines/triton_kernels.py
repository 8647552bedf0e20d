# ruff: noqa: N803
"""Kernels that call one rule of binep/engines/cuda/rules.py each, for arrays of any length."""

import triton
import triton.language as tl

from binep.engines.cuda import rules


@triton.jit
def send(s, out, n, neuron, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    found = rules.sent(tl.load(s + k, mask=k < n, other=0.0), neuron, False)
    tl.store(out + k, found, mask=k < n)


@triton.jit
def step(s, drive, pull, out, n, neuron, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    force = None
    if pull is not None:
        force = tl.load(pull + k, mask=k < n, other=0.0)
    old = tl.load(s + k, mask=k < n, other=0.0)
    new = rules.step(old, tl.load(drive + k, mask=k < n, other=0.0), force, neuron)
    tl.store(out + k, new, mask=k < n)


@triton.jit
def nudge(s, target, beta, out, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    y = tl.load(target + k, mask=k < n, other=0.0)
    found = rules.nudge(beta, y, tl.load(s + k, mask=k < n, other=0.0))
    tl.store(out + k, found, mask=k < n)


@triton.jit
def nudge_bit(target, beta, out, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    tl.store(out + k, rules.nudge_bit(beta, tl.load(target + k, mask=k < n)), mask=k < n)


@triton.jit
def flip(w, m, tau, out, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    sign = tl.load(w + k, mask=k < n, other=1.0)
    _, found = rules.flip(sign, tl.load(m + k, mask=k < n, other=0.0), 0.0, 1.0, tau)
    tl.store(out + k, found.to(tl.float32), mask=k < n)
