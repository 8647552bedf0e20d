"""Synaptic weights: binary (`W = scale * signs`) or real.

Both offer the same face to a coupling: a `kernel` that is summed over, a `gain` that multiplies
those sums, and the full weight `W = gain * kernel`. Keeping the two factors apart lets a sum over
signs and bits stay an exact integer until it is scaled, once.
"""

import math
from typing import Final

import torch
from torch import Tensor, nn

# The paper learns alpha from the *scaled* weights, and for dense couplings from one half of
# a^T W a (supplement, section D.2). Its learning rates include both factors.
DENSE_SCALE_RULE: Final = 0.5
CONV_SCALE_RULE: Final = 1.0


def sign(values: Tensor) -> Tensor:
    """+1 where `values >= 0`, -1 elsewhere: a synapse is never zero.

    >>> sign(torch.tensor([-0.3, 0.0, -0.0, 2.0]))
    tensor([-1.,  1.,  1.,  1.])
    """
    return torch.where(values >= 0, 1.0, -1.0).to(values.dtype)


def default_draw(
    shape: tuple[int, ...], fan_in: int, generator: torch.Generator | None = None
) -> Tensor:
    """PyTorch's default initialisation: U(-1/sqrt(fan_in), +1/sqrt(fan_in)), float32."""
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def nearest_power_of_two(values: Tensor) -> Tensor:
    """Each positive value as `2^round(log2 value)`: what hardware multiplies by with a shift.

    >>> nearest_power_of_two(torch.tensor([0.02, 0.25, 0.7, 3.0]))
    tensor([0.0156, 0.2500, 0.5000, 4.0000])
    """
    mantissa = values.frexp().mantissa
    # Exact, unlike exp2 on some machines: a value is its mantissa, in [1/2, 1), times this.
    power = values / mantissa
    return torch.where(mantissa >= math.sqrt(0.5), power, power / 2)


def is_power_of_two(values: Tensor) -> Tensor:
    """Whether each value is a power of two, a bool tensor like them.

    >>> is_power_of_two(torch.tensor([0.25, 0.3, 4.0]))
    tensor([ True, False,  True])
    """
    return values.frexp().mantissa == 0.5


class BinaryWeight(nn.Module):
    """`W = scale * signs` with signs in {-1, +1} (Algorithm 3).

    Args:
        draw: initial real weights, (out, ...). `signs = sign(draw)`, `scale = mean |draw|`.
        channelwise: one scale for each output channel, shape (out,); otherwise a single one, ().
        learn_scale: whether an optimizer is expected to train the scale.
    """

    def __init__(self, draw: Tensor, *, channelwise: bool, learn_scale: bool = False) -> None:
        super().__init__()
        if draw.is_meta:
            # Only shapes are asked for; torch would import its compiler, which takes a second.
            signs, scale = draw, draw.new_empty(len(draw) if channelwise else ())
        else:
            signs = sign(draw)
            # In float64, row by row: one rounding at the end, however many threads add up.
            rows = draw.abs().flatten(1).sum(1, dtype=torch.float64)
            count = draw[0].numel() if channelwise else draw.numel()
            scale = ((rows if channelwise else rows.sum()) / count).to(draw.dtype)
        self.signs = nn.Parameter(signs)
        self.scale = nn.Parameter(scale, requires_grad=learn_scale)
        self.rule = CONV_SCALE_RULE if channelwise else DENSE_SCALE_RULE

    @property
    def kernel(self) -> Tensor:
        return self.signs

    @property
    def gain(self) -> Tensor:
        return self.scale

    @property
    def full(self) -> Tensor:
        """`W = scale * signs`, (out, ...)."""
        return _per_channel(self.scale, self.signs) * self.signs

    @property
    def scale_factor(self) -> Tensor:
        """What EP's gradient of the scale holds too much: `ep.grad = scale_factor * dL/dscale`."""
        return self.rule * self.scale.detach()

    def set_gradient_from_contrast(self, contrast: Tensor, factor: float) -> None:
        """Take EP's `dL/dW = factor * contrast`, and the scale's rule from the same contrast.

        Since `a_above . W a_below = <W, correlation>`, the paper's rule for alpha is a contraction
        of the weight's: `rule * factor * <W, contrast>`. It is summed in float64, where integer
        contrasts stay exact in whatever order an engine adds them.
        """
        self.signs.grad = factor * contrast
        self.set_scale_gradient(contrast, factor)

    def set_scale_gradient(self, contrast: Tensor, factor: float) -> None:
        """The scale's part of `set_gradient_from_contrast`."""
        rule = self.scale_factor.to(wide(contrast)) * factor
        self.scale.grad = (rule * self._contract(contrast)).to(self.scale.dtype)

    def set_gradient_from_kernel(self, kernel_gradient: Tensor) -> None:
        """Take autograd's `dL/dsigns = scale * dL/dW`."""
        self.set_gradient(kernel_gradient / _per_channel(self.scale.detach(), kernel_gradient))

    def set_gradient(self, gradient: Tensor) -> None:
        """Take `dL/dW`; the scale gets its true gradient `<signs, dL/dW>`."""
        self.signs.grad = gradient
        self.scale.grad = self._contract(gradient).to(self.scale.dtype)

    def _contract(self, gradient: Tensor) -> Tensor:
        """`<signs, gradient>` in float64, over the whole weight or channel by channel."""
        product = self.signs.detach() * gradient
        # Row by row first: one sum over everything would depend on the number of threads.
        rows = product.flatten(1).sum(1, dtype=wide(product))
        return rows if self.scale.dim() else rows.sum()


def wide(like: Tensor) -> torch.dtype:
    """The widest numbers where a tensor is, for sums: float64; float32 on Apple's GPUs."""
    return torch.float32 if like.device.type == "mps" else torch.float64


class RealWeight(nn.Module):
    """A full-precision weight: the draw itself, with gain 1."""

    gain: Tensor

    def __init__(self, draw: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw)
        self.register_buffer("gain", draw.new_ones(()), persistent=False)

    @property
    def kernel(self) -> Tensor:
        return self.weight

    @property
    def full(self) -> Tensor:
        return self.weight

    def set_gradient_from_contrast(self, contrast: Tensor, factor: float) -> None:
        self.weight.grad = factor * contrast

    def set_gradient_from_kernel(self, kernel_gradient: Tensor) -> None:
        self.set_gradient(kernel_gradient)

    def set_gradient(self, gradient: Tensor) -> None:
        self.weight.grad = gradient


def _per_channel(scale: Tensor, weight: Tensor) -> Tensor:
    """Shape a scale, () or (out,), so that it multiplies a weight, (out, ...)."""
    return scale.reshape(-1, *[1] * (weight.dim() - 1))
