"""What the engines on the CPU share: they train a network and its optimizers where they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from binep.core.gradients import EquilibriumPropagation, Learning
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Bop, Optimizers
from binep.engines.activity import Activity
from binep.engines.numba.jit import kernel_threads
from binep.errors import BinepError


class InPlaceEngine:
    """Trains binary weights by EP in compiled kernels; signs, momenta, biases and scales stay put.

    The network and its optimizers so hold the state of training at any time. What an engine copies
    of the signs it copies anew if someone else changes them, see `_changed_signs`.
    """

    name: str

    def __init__(
        self,
        network: Network,
        learning: Learning,
        optimizers: Optimizers,
        needs: Mapping[str, bool],
    ) -> None:
        self.learning = self._check(network, learning, needs)
        self.network, self.optimizers = network, optimizers
        self.activity: Activity = Activity()
        self._tally = Tally()
        self._seen: list[Any] = [None] * len(network.couplings)

    def _check(
        self, network: Network, learning: Learning, needs: Mapping[str, bool]
    ) -> EquilibriumPropagation:
        """Refuse, by name, what this engine does not compute."""
        needs = {
            **needs,
            "cost='mse'": network.cost == "mse",
            "binary weights": all(coupling.binary for coupling in network.couplings),
            "parameters in float32 on the CPU": all(
                p.dtype == torch.float32 and p.device.type == "cpu" for p in network.parameters()
            ),
        }
        for need, met in needs.items():
            if not met:
                raise BinepError(
                    f"engine {self.name!r} needs {need}; the reference engine runs the rest"
                )
        if not isinstance(learning, EquilibriumPropagation):
            raise BinepError(
                f"engine {self.name!r} with {type(learning).__name__}: allowed is "
                "EquilibriumPropagation"
            )
        learning.check(network)
        return learning

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        tally, self._tally = self._tally, Tally()
        return tally

    @property
    def kernel_threads(self) -> int:
        """How many threads the kernels run on."""
        return kernel_threads()

    def sync(self) -> None:
        """The network and the optimizers are the state: there is nothing to bring back."""

    def _changed_signs(self) -> Iterator[int]:
        """The couplings whose signs someone else, such as a restored checkpoint, has changed."""
        for n, coupling in enumerate(self.network.couplings):
            version = (coupling.signs.data_ptr(), coupling.signs._version)
            if self._seen[n] != version:
                if not coupling.signs.is_contiguous():
                    raise BinepError(
                        f"engine {self.name!r}: the signs of coupling {n} are not contiguous"
                    )
                self._seen[n] = version
                yield n

    def _bop_of(self, n: int) -> tuple[Bop, dict[str, Any]]:
        """Bop, and its group that coupling n's signs belong to."""
        bop, signs = self.optimizers.bop, self.network.couplings[n].signs
        for group in bop.param_groups if bop is not None else []:
            if any(p is signs for p in group["params"]):
                assert bop is not None
                return bop, group
        raise BinepError(f"engine {self.name!r}: no Bop claims the signs of coupling {n}")

    def _in_order(self, flips: list[int]) -> list[int]:
        """Flips, one count a coupling, in the order in which Bop has them."""
        bop, couplings = self.optimizers.bop, self.network.couplings
        count = {id(coupling.signs): f for coupling, f in zip(couplings, flips, strict=True)}
        return [count[id(p)] for g in (bop.param_groups if bop else []) for p in g["params"]]

    def _set_scale_gradient(self, n: int, overlaps: Tensor, factor: float) -> None:
        """The scale's rule from `<signs, contrast>` of every neuron or channel above, (above,)."""
        coupling = self.network.couplings[n]
        rule = coupling.synapses.scale_factor.double() * factor  # type: ignore[union-attr]
        overlap = overlaps.double()
        overlap = overlap if coupling.scale.dim() else overlap.sum()
        coupling.scale.grad = (rule * overlap).to(coupling.scale.dtype)

    def _step_the_rest(self) -> None:
        """Step what is not Bop's: biases and scales."""
        for optimizer in (self.optimizers.sgd, self.optimizers.scale_sgd):
            if optimizer is not None:
                optimizer.step()
