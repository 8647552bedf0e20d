"""What tests of several engines share: chains of couplings, mini-batches, momenta."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from binep import ConvPool, Dense, Network


def chain(
    input_shape: tuple[int, ...],
    convs: Sequence[dict[str, Any]],
    dense: Sequence[int],
    **options: Any,
) -> list[ConvPool | Dense]:
    """Couplings that fit on one another, from the input to the last of `dense`."""
    shape, found = input_shape, []
    for conv in convs:
        found.append(ConvPool(shape[0], **conv, **options))
        shape = found[-1].above_shape(shape)
    for above in dense:
        found.append(Dense(torch.Size(shape).numel(), above, **options))
        shape = (above,)
    return found


def batches(
    net: Network, batch: int, count: int, kind: str = "pixels", seed: int = 5
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random mini-batches of pixels, bits or real numbers, half of them dark."""
    torch.manual_seed(seed)
    for _ in range(count):
        shape = (batch, *net.input_shape)
        lit = torch.rand(shape) < 0.5
        x = {
            "pixels": torch.randint(256, shape, dtype=torch.uint8) * lit,
            "bits": lit,
            "real": torch.randn(shape) * lit,
        }[kind]
        yield x, torch.randint(net.classes, (batch,))


def momenta(optimizers: Any) -> list[dict[str, Any]]:
    """Bop's state of every coupling."""
    return [optimizers.bop.state[g["params"][0]] for g in optimizers.bop.param_groups]
