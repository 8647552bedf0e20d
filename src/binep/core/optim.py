"""Optimizers: Bop flips signs, SGD moves everything else, and each parameter has exactly one."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from binep.core.network import Network
from binep.core.weights import RealWeight
from binep.errors import BinepError, one_each

RATES = ("gamma", "tau", "lr_bias", "lr_scale", "lr_weight")
NEVER_ZERO = 1e-10  # what square roots are raised by before something is divided by them


class _WithoutCompiler(Optimizer):
    """An optimizer that does not import torch's compiler, which takes a second, to keep it out."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)


def flips(weights: Tensor, momentum: Tensor, threshold: float | Tensor) -> Tensor:
    """Which weights flip: `|m| > tau` and `sign(m) = sign(w)`."""
    return (momentum.abs() > threshold) & (momentum.sign() == weights.sign())


class Bop(_WithoutCompiler):
    """The binary optimizer of Helwegen et al. (Algorithm 1), without latent weights.

        m <- (1 - gamma) m + gamma g        m starts at 0
        flip w_i  where |m_i| > tau and sign(m_i) = sign(w_i)

    `g` is the gradient of the loss, so a weight flips when it agrees with a momentum that says it
    should not. With gammas down to 5e-8 the decay of `m` would drown in float32's rounding; so it
    is kept out of the array: `m = decay * M` with one number `decay`, and an entry without gradient
    is not touched. When `decay` falls to 1/2 it is folded into `M` by a power of two, exactly.

    Args:
        params: tensors of +-1, or groups of them with their own `gamma`, `tau` and `noise`.
        gamma: adaptivity rate, above 0 and at most 1.
        tau: threshold, at least 0.
        noise: standard deviation of the initial momentum, in units of gamma.
        generator: source of that noise.

    Each group also has `lr`, a factor on gamma, 1 at first: torch's LR schedulers act on it.
    `state[p]` holds `momentum` (the array M), `decay`, and `flips`, counted since the start.

    >>> w = nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> bop = Bop([w], gamma=0.5, tau=0.2)
    >>> w.grad = torch.tensor([1.0, 1.0])
    >>> bop.step(), w.tolist()
    ([1], [-1.0, -1.0])
    """

    arrays: ClassVar[tuple[str, ...]] = ("momentum",)
    """What of `state[p]` is like the parameter."""

    def __init__(
        self,
        params: Iterable[Any],
        gamma: float | None = None,
        tau: float | None = None,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.generator = generator
        super().__init__(params, {"gamma": gamma, "tau": tau, "noise": noise, "lr": 1.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        bounds = {"gamma": (0, 1), "tau": (0, math.inf), "noise": (0, math.inf)}
        for name, (low, high) in bounds.items():
            value = group[name]
            if value is None or not low <= value <= high or (name == "gamma" and value == 0):
                raise BinepError(
                    f"Bop {name}={value}: allowed is a number "
                    + ("above 0 and at most 1" if name == "gamma" else "of at least 0")
                )
        for p in group["params"]:
            if p.dtype not in (torch.float32, torch.float64):
                raise BinepError(
                    f"Bop on a parameter of {p.dtype}: its momentum needs float32 or float64"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> list[int]:  # type: ignore[override]
        """Update the momenta and flip; returns the flips of this step, one count a parameter."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        return [self._flip(p, group) for group in self.param_groups for p in group["params"]]

    def momentum(self, parameter: Tensor) -> Tensor:
        """m of a parameter, shaped like it."""
        state = self.state[parameter]
        if not state:
            return torch.zeros_like(parameter)
        return state["decay"] * state["momentum"]

    def compared(self, parameter: Tensor) -> Tensor:
        """What is compared with tau, sign apart: m."""
        return self.momentum(parameter)

    def _flip(self, p: Tensor, group: dict[str, Any]) -> int:
        if p.grad is None:
            return 0
        rate, threshold = self.prepare(p, group)
        self.state[p]["momentum"].add_(p.grad * rate)
        return self._flip_where_due(p, threshold)

    def _flip_where_due(self, p: Tensor, threshold: float | Tensor) -> int:
        flip = flips(p, self.state[p]["momentum"], threshold)
        p.copy_(torch.where(flip, -p, p))
        count = int(flip.sum())
        self.state[p]["flips"] += count
        return count

    def prepare(self, p: Tensor, group: dict[str, Any]) -> tuple[float, float]:
        """Let a parameter's momentum decay by one step; returns `gamma/decay`, `tau/decay`.

        What is left of the step is `M <- M + g * rate`, and to flip where `|M| > threshold`.
        """
        gamma, state = group["gamma"] * group["lr"], self.state[p]
        at_rest = not state and group["noise"] == 0
        if not state:
            state.update(momentum=self._initial_momentum(p, group), decay=1.0, flips=0)
        if not at_rest:
            state["decay"] = _decayed(state["momentum"], state["decay"], gamma)
        return gamma / state["decay"], group["tau"] / state["decay"]

    def _initial_momentum(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        if group["noise"] == 0:
            return torch.zeros_like(p)
        # Drawn where the generator is, on the CPU by default: there every machine draws the same.
        place = "cpu" if self.generator is None else self.generator.device
        noise = torch.empty(p.shape, dtype=p.dtype, device=place)
        noise.normal_(0, group["noise"] * group["gamma"], generator=self.generator)
        return noise.to(p.device)


class SecondOrderBop(Bop):
    """Bop whose momentum is measured by how large gradients are (Suarez-Ramirez et al. 2021).

        m <- (1 - gamma) m + gamma g        v <- (1 - sigma) v + sigma g^2        both start at 0
        flip w_i  where |m_i| / (sqrt(v_i) + 1e-10) > tau and sign(m_i) = sign(w_i)

    So a tau means the same whatever a coupling's gradients are multiplied by: it is the biased one
    of the paper's two versions. `state[p]` holds v as `square`, besides.

    Args:
        sigma: rate of v, above 0 and at most 1.
        params, gamma, tau, noise, generator: as for `Bop`.

    >>> w = nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> bop = SecondOrderBop([w], sigma=1.0, gamma=0.5, tau=0.4)
    >>> w.grad = torch.tensor([1e-6, 1e3])
    >>> bop.step(), [round(m, 3) for m in bop.compared(w).tolist()]
    ([2], [0.5, 0.5])
    """

    arrays: ClassVar[tuple[str, ...]] = ("momentum", "square")

    def __init__(self, params: Iterable[Any], sigma: float, **options: Any) -> None:
        if not 0 < sigma <= 1:
            raise BinepError(f"Bop sigma={sigma}: allowed is a number above 0 and at most 1")
        self.sigma = sigma
        super().__init__(params, **options)

    def compared(self, parameter: Tensor) -> Tensor:
        """What is compared with tau, sign apart: m / (sqrt(v) + 1e-10)."""
        state = self.state[parameter]
        if not state:
            return torch.zeros_like(parameter)
        return self.momentum(parameter) / (state["square"].sqrt() + NEVER_ZERO)

    def _flip(self, p: Tensor, group: dict[str, Any]) -> int:
        if p.grad is None:
            return 0
        rate, threshold = self.prepare(p, group)
        state = self.state[p]
        state["momentum"].add_(p.grad * rate)
        square = state.setdefault("square", torch.zeros_like(p))
        square.lerp_(p.grad.square(), self.sigma)
        return self._flip_where_due(p, threshold * (square.sqrt() + NEVER_ZERO))


def _decayed(momentum: Tensor, decay: float, gamma: float) -> float:
    """Let `decay` shrink by one step, folding powers of two into the array once it is small."""
    decay *= 1 - gamma
    if decay > 0.5:
        return decay
    if decay == 0:
        momentum.zero_()
        return 1.0
    fraction, exponent = math.frexp(decay)
    momentum.mul_(2.0 ** (exponent - 1))
    return 2 * fraction


class PlainSGD(_WithoutCompiler, SGD):
    """`p <- p - lr g`, as torch's SGD does it."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])


class PositiveSGD(PlainSGD):
    """Plain SGD on scales, which must stay positive: a layer is never inverted.

    An entry that a step would take below `floor` is set to it. `state[p]["clamped"]` counts how
    often that happened.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, floor: float = 1e-6) -> None:
        super().__init__(params, lr=lr)
        self.floor = floor
        for group in self.param_groups:
            for p in group["params"]:
                # A tensor, so that counting does not wait for the device.
                self.state[p]["clamped"] = torch.zeros((), dtype=torch.int64, device=p.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                below = p < self.floor
                self.state[p]["clamped"] += below.sum()
                p.masked_fill_(below, self.floor)

    @property
    def clamped(self) -> int:
        """How many updates the floor has caught so far."""
        return sum(int(state.get("clamped", 0)) for state in self.state.values())


@dataclass(frozen=True)
class Optimizers:
    """The optimizers of a network, stepped together. Those without parameters are None."""

    bop: Bop | None
    sgd: PlainSGD | None
    scale_sgd: PositiveSGD | None

    def __iter__(self) -> Iterator[Optimizer]:
        return iter([o for o in (self.bop, self.sgd, self.scale_sgd) if o is not None])

    def set_rates(self, rates: Mapping[str, Sequence[float]]) -> None:
        """Change rates between epochs: for each name of `RATES`, one value a coupling."""
        for optimizer in self:
            for group in optimizer.param_groups:
                for key, rate in group["rates"].items():
                    if rate in rates:
                        group[key] = rates[rate][group["coupling"]]

    def state_dict(self) -> dict[str, Any]:
        """The states of all of them: momenta, decays, flips, rates."""
        return {name: o.state_dict() for name, o in vars(self).items() if o is not None}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken, of optimizers of the same network."""
        mine = {name for name, optimizer in vars(self).items() if optimizer is not None}
        if mine != set(states):
            raise BinepError(
                f"state of optimizers {', '.join(sorted(states))}: allowed is one of "
                f"{', '.join(sorted(mine))}"
            )
        for name in mine:
            getattr(self, name).load_state_dict(states[name])

    def step(self) -> list[int]:
        """One step of each; returns Bop's flips, one count a binary coupling."""
        flips = self.bop.step() if self.bop is not None else []
        for optimizer in (self.sgd, self.scale_sgd):
            if optimizer is not None:
                optimizer.step()
        return flips


def assign_optimizers(
    network: Network,
    *,
    gamma: float | Sequence[float] | None = None,
    tau: float | Sequence[float] | None = None,
    lr_bias: float | Sequence[float] | None = None,
    lr_scale: float | Sequence[float] | None = None,
    lr_weight: float | Sequence[float] | None = None,
    noise: float = 0.0,
    sigma: float | None = None,
    generator: torch.Generator | None = None,
) -> Optimizers:
    """Give every parameter of a network its optimizer: Bop for signs, SGD for the rest.

    Each rate is one number, or one for each coupling from input to output. A rate that is None
    leaves its parameters without an optimizer, which is an error if there are any to train.

    Args:
        gamma: rate of `Bop`, for the signs of binary couplings.
        tau: threshold of `Bop`.
        sigma: makes it a `SecondOrderBop`.
        lr_bias: learning rate of SGD for biases.
        lr_scale: learning rate of SGD for learnt scales.
        lr_weight: learning rate of SGD for real weights.
        noise: standard deviation of `Bop`'s initial momentum, in units of gamma.
        generator: source of that noise.
    """
    rates = {
        name: None if value is None else one_each(name, value, len(network.couplings), "couplings")
        for name, value in {
            "gamma": gamma,
            "tau": tau,
            "lr_bias": lr_bias,
            "lr_scale": lr_scale,
            "lr_weight": lr_weight,
        }.items()
    }
    flipped, moved, scaled = [], [], []

    def claim(groups: list[dict[str, Any]], n: int, parameter: Tensor, **keys: str) -> None:
        """Add a group whose `keys` (gamma, tau, lr) take the rates they name, if all are given."""
        if all(rates[rate] is not None for rate in keys.values()):
            values = {key: rates[rate][n] for key, rate in keys.items()}  # type: ignore[index]
            groups.append({"params": [parameter], "coupling": n, "rates": keys, **values})

    for n, coupling in enumerate(network.couplings):
        if isinstance(coupling.synapses, RealWeight):
            claim(moved, n, coupling.synapses.weight, lr="lr_weight")
        else:
            claim(flipped, n, coupling.signs, gamma="gamma", tau="tau")
            if coupling.scale.requires_grad:
                claim(scaled, n, coupling.scale, lr="lr_scale")
        if coupling.bias is not None:
            claim(moved, n, coupling.bias, lr="lr_bias")
    of_bop = Bop if sigma is None else partial(SecondOrderBop, sigma=sigma)
    optimizers = Optimizers(
        of_bop(flipped, noise=noise, generator=generator) if flipped else None,
        PlainSGD(moved, lr=0.0) if moved else None,
        PositiveSGD(scaled) if scaled else None,
    )
    check_claims(network, optimizers)
    return optimizers


def check_claims(network: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Refuse, by name, a trainable parameter that no optimizer claims, or that several do."""
    names = {id(p): name for name, p in network.named_parameters()}
    claims: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                claims[id(p)] = claims.get(id(p), 0) + 1
                if id(p) not in names:
                    raise BinepError(
                        f"{type(optimizer).__name__} claims a parameter of shape "
                        f"{tuple(p.shape)} that is not the network's"
                    )
    for name, p in network.named_parameters():
        count = claims.get(id(p), 0)
        if count > 1:
            raise BinepError(f"{name} is claimed {count} times: one optimizer must have it")
        if count == 0 and p.requires_grad:
            raise BinepError(
                f"{name} is claimed by no optimizer: give it a rate, or freeze it with "
                "requires_grad_(False)"
            )
        if count == 1 and not p.requires_grad:
            raise BinepError(f"{name} is frozen (requires_grad=False) but an optimizer claims it")
