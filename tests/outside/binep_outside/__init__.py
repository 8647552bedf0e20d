"""A package outside of binep that brings one piece of each kind: what its users write, too.

It is not installed: a test puts this folder on the path, where `binep_outside-1.0.dist-info` is
found as that of an installed package would be.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from binep import Dense
from binep.data import Dataset, Split
from binep.deploy.export import Shipment
from binep.training.progress import Watcher

SIDE = 6


def bars() -> Dataset:
    """Noisy pictures with a bar, which lies in the upper or in the lower half: two classes."""
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> Split:
        places = torch.randint(SIDE, (count,), generator=generator)
        pictures = 0.2 * torch.rand(count, 1, SIDE, SIDE, generator=generator)
        for picture, place in zip(pictures, places, strict=True):
            picture[0, place] += 0.8
        return Split(pictures, (places >= SIDE // 2).long())

    return Dataset("bars", drawn(200), drawn(80), classes=2, class_names=("upper", "lower"))


@dataclass(frozen=True)
class Soft:
    """`rho(s) = tanh(gain s)`, between -1 and 1."""

    gain: float = 1.0

    name: ClassVar[str] = "soft"
    binary: ClassVar[bool] = False
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, state: Tensor) -> Tensor:
        return (self.gain * state).tanh()

    def slope(self, state: Tensor) -> Tensor:
        return self.gain * (1 - self(state).square())


class Nearby(Dense):
    """Neurons joined to those at most `reach` places away, where both layers are as long."""

    name = "nearby"
    near: Tensor

    def __init__(self, below: int, above: int, *, reach: int = 8, **options: Any) -> None:
        super().__init__(below, above, **options)
        self.reach = reach
        places = torch.arange(above)[:, None] * below / above
        self.register_buffer("near", ((torch.arange(below) - places).abs() <= reach).float())

    def sum_up(self, below: Tensor) -> tuple[Tensor, None]:
        return F.linear(self.numbers(below).flatten(1), self.near * self.synapses.kernel), None

    def down(self, above: Tensor, switches: Tensor | None, below_shape: Any) -> Tensor:
        sums = self.numbers(above) @ (self.near * self.synapses.kernel)
        return (self.synapses.gain * sums).reshape(len(above), *below_shape[-1:])

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None = None) -> Tensor:
        return self.near * super().correlate(below, above)


def write_text(shipment: Shipment, folder: Path) -> list[Path]:
    """Every coupling's weights as a table of numbers."""
    paths = []
    for n, coupling in enumerate(shipment.network.couplings):
        paths.append(folder / f"{shipment.name}-{n}.txt")
        rows = coupling.weight.tolist()
        paths[-1].write_text("\n".join(" ".join(map(str, row)) for row in rows) + "\n")
    return paths


class Lines(Watcher):
    """A line of text an epoch, in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lines.txt"

    def epoch(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(f"{line['epoch']}: {line['test_error']['average']:.1f} %\n")
