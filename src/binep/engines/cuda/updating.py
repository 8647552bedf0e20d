# pyright: reportCallIssue=false
"""From two phases to new weights: contrasts, Bop, gradients for the other optimizers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from binep.core.couplings import levels
from binep.core.network import Network
from binep.core.optim import Bop
from binep.core.weights import BinaryWeight
from binep.engines.cuda.couplings import FastConv, FastDense, flat, launch, product
from binep.engines.cuda.kernels import bop_kernel
from binep.engines.cuda.learning import changes_kernel, learn_kernel
from binep.engines.cuda.relaxers.base import Phase
from binep.engines.torch.engine import tensor_cores

# Factor on changes of real activities, which would else sink below what float16 can hold.
SPREAD = 1024
ABOVE, BELOW = 64, 64  # a tile of synapses


class Updater:
    """Learns from a mini-batch: flips signs by Bop, fills `.grad` of everything else.

    Args:
        beta: f32, (1,), signed. rates: f32, (couplings, 3), of Bop. flips: int64, (couplings,).
    """

    def __init__(
        self,
        network: Network,
        couplings: Sequence[FastDense | FastConv],
        bop: Bop | None,
        beta: Tensor,
        rates: Tensor,
        flips: Tensor,
    ) -> None:
        self.network, self.couplings, self.bop = network, couplings, bop
        self.beta, self.rates, self.flips = beta, rates, flips
        self.bits = network.neuron.binary

    def update(
        self,
        x: Tensor,
        numbers: Tensor,
        switches: Tensor | None,
        nudged: Phase,
        base: Phase,
        places: Sequence[dict[int, Tensor | None]],
        span: float,
    ) -> None:
        """One mini-batch.

        Args:
            x: the input. numbers: the same in the products' layout.
            switches: of the first coupling's pool. places: those of the others, where the nudged
                phase and the base end. span: |beta|, twice that if centered.
        """
        plus, minus = self._sent(nudged), self._sent(base)
        changes = [
            self._changes(n, *pair, -1 / (span * len(x)))
            for n, pair in enumerate(zip(plus, minus, strict=True))
        ]
        for n, fast in enumerate(self.couplings):
            factor = -1 / (span * len(x) * (levels(x) if n == 0 else 1))
            if isinstance(fast, FastDense) and not _real_input(n, x):
                tails = flat(numbers) if n == 0 else changes[n - 1][1]
                self._learn_dense(n, fast, changes[n][0], tails, factor)
                continue
            if n == 0:
                # The input does not change: only the layer above does. TF32 where it is exact.
                with tensor_cores(self.bits and not _real_input(n, x)):
                    contrast = fast.correlate(numbers, plus[0] - minus[0], switches)
            else:
                ends = [(side[n - 1], side[n]) for side in (plus, minus)]
                contrast = _contrast(fast, *ends, [places[side][n] for side in range(2)])
            self._apply(n, contrast * torch.sign(self.beta), factor)

    def flips_copies(self, n: int, x: Tensor) -> bool:
        """Whether `update` changes the copies of coupling n's signs, too, along with the signs."""
        fast = self.couplings[n]
        return isinstance(fast, FastDense) and fast.coupling.binary and not _real_input(n, x)

    def _sent(self, phase: Phase) -> list[Tensor]:
        """What learning reads: bits as they were sent, real activities in full precision."""
        return phase.activity if self.bits else self.network.activity(phase.state, nudged=True)

    def _changes(self, n: int, plus: Tensor, minus: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """A layer's part in the contrasts of its couplings, see `changes_kernel`; fills `.grad`."""
        coupling = self.network.couplings[n]
        # An image's bias is summed over positions before it is scaled.
        image = plus.dim() == 4
        plus_rows, minus_rows = flat(plus), flat(minus)
        batch, units = plus_rows.shape
        heads = torch.empty(2 * batch, units, dtype=torch.float16, device=plus.device)
        tails, gradient = torch.empty_like(heads), torch.empty(units, device=plus.device)
        changes_kernel[(-(-units // 32),)](
            plus_rows,
            minus_rows,
            plus_rows.stride(0),
            minus_rows.stride(0),
            heads,
            tails,
            gradient,
            self.beta,
            batch,
            units,
            1.0 if image else factor,
            SPREAD=self._spread,
            ROWS=64,
            BLOCK=32,
            enable_fp_fusion=False,
        )
        if coupling.bias is not None:
            if image:
                gradient = factor * gradient.view(-1, len(coupling.bias)).sum(0)
            coupling.bias.grad = gradient
        return heads, tails

    @property
    def _spread(self) -> int:
        return 1 if self.bits else SPREAD

    def _learn_dense(
        self, n: int, fast: FastDense, heads: Tensor, tails: Tensor, factor: float
    ) -> None:
        synapses = self.network.couplings[n].synapses
        heads = heads[: len(tails)]  # the input does not change: only the layer above does
        if not isinstance(synapses, BinaryWeight):
            direction = torch.sign(self.beta) / self._spread
            contrast = fast.in_parameter_order(product(heads.T, tails.half()) * direction)
            synapses.set_gradient_from_contrast(contrast, factor)
            return
        assert self.bop is not None
        above, below = fast.kernel.shape
        programs = -(-above // ABOVE) * -(-below // BELOW)
        learnt = synapses.scale.requires_grad
        contracted = torch.empty(
            programs if learnt else 1, dtype=torch.float64, device=heads.device
        )
        channels = fast.below_shape[0]
        turned = fast.kernel if fast.turned is None else fast.turned
        learn_kernel[(programs,)](
            heads,
            tails.half(),
            synapses.signs.detach(),
            fast.kernel,
            turned,
            *((turned, 0, 16, 0, 0, 16, 0) if fast.packed is None else fast.packed.for_kernel()),
            self.bop.state[synapses.signs]["momentum"],
            self.rates[n],
            self.flips[n:],
            contracted,
            self.beta,
            len(tails),
            above,
            below,
            channels,
            below // channels,
            factor,
            SPREAD=self._spread,
            SPARSE=self.bits,
            TURN=fast.turned is not None,
            PACKED=fast.packed is not None,
            PERMUTED=fast.permuted,
            SCALE=learnt,
            ROWS=64,
            ABOVE=ABOVE,
            BELOW=BELOW,
            enable_fp_fusion=False,
            num_warps=4,
        )
        if learnt:
            rule = synapses.scale_factor.double() * factor
            synapses.scale.grad = (rule * contracted.sum()).to(synapses.scale.dtype)

    def _apply(self, n: int, contrast: Tensor, factor: float) -> None:
        synapses = self.network.couplings[n].synapses
        if not isinstance(synapses, BinaryWeight):
            synapses.set_gradient_from_contrast(contrast, factor)
            return
        if synapses.scale.requires_grad:
            synapses.set_scale_gradient(contrast, factor)
        self.flip(n, contrast, factor)

    def flip(self, n: int, contrast: Tensor, factor: float) -> None:
        """Bop on coupling n, whose gradient is `factor * contrast`."""
        signs = self.network.couplings[n].signs
        assert self.bop is not None
        launch(
            bop_kernel,
            contrast.numel(),
            signs.detach(),
            self.bop.state[signs]["momentum"],
            contrast,
            self.rates[n],
            self.flips[n:],
            contrast.numel(),
            factor,
        )


def _contrast(
    fast: FastConv,
    plus: tuple[Tensor, Tensor],
    minus: tuple[Tensor, Tensor],
    places: Sequence[Tensor | None],
) -> Tensor:
    """The contrast of a convolution in what changed, see `learning`: TF32 rounds that little.

    Args:
        plus, minus: activities below and above. places: the winners' for either.
    """
    after, before = (
        fast.unpool(above, None, switches, torch.float32)
        for (_, above), switches in zip((plus, minus), places, strict=True)
    )
    below = torch.cat([plus[0], plus[0] - minus[0]])
    with tensor_cores(True):
        return fast.correlate_maps(below, torch.cat([after - before, before]))


def _real_input(n: int, x: Tensor) -> bool:
    """Whether coupling n reads real numbers that float16 could not hold."""
    return n == 0 and x.is_floating_point()
