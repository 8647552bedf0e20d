"""An active start: gains and biases that make each layer respond, and taus that fit its gradients.

A network of binary neurons that starts with all images on the same neurons has nothing to learn
from. So before training, on a few training images, layer by layer from the input on and over again:

    gain   such that what comes from below differs between images by `spread`, standard deviation
    bias   such that a layer's neurons are on, at rest, for a share `activity` of images

Then some mini-batches go by without a flip, and tau is the quantile of |m| that they leave: of the
weights beyond it those would flip that have the sign of their m. All of it are numbers of a recipe,
one per coupling. The test set is not used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from binep.core.gradients import EquilibriumPropagation
from binep.core.network import Clamped, Network
from binep.core.relaxation import relax
from binep.errors import BinepError
from binep.report.figures import text_table
from binep.studies.workbench import Workbench
from binep.training import runs
from binep.training.recipe import Recipe
from binep.training.sections import PaperKeys, nth

IMAGES = 256  # that activity is measured on
ROUNDS = 8
BATCHES = 10  # without flips
QUANTILE = 0.999
MOST_STATES = 2**22  # that a quantile is taken of


@dataclass(frozen=True)
class Woken:
    """The recipe found, and what was measured of each layer, before and after.

    Attributes:
        before, after: share of neurons and images that are on at rest.
        spread: standard deviation over images of what comes from below, after.
    """

    recipe: Recipe
    before: list[float]
    after: list[float]
    spread: list[float]


def wake(
    bench: Workbench,
    activity: Sequence[float],
    *,
    spread: Sequence[float] | None = None,
    batches: int = BATCHES,
    quantile: float = QUANTILE,
) -> Woken:
    """A recipe with the gains, biases and taus that make its layers as active as asked.

    Args:
        activity: share of images that a layer's neurons are on for; one number, or one per layer.
        spread: likewise; by default the recipe's gains stay.
        batches: mini-batches without flips. quantile: of |m| after them.
    """
    recipe = bench.recipe
    layers = _binary_layers(recipe)
    shares = _one_each("activity", activity, layers, 1.0)
    spreads = [None] * layers if spread is None else _one_each("spread", spread, layers, math.inf)
    if batches < 1 or not 0 < quantile < 1:
        raise BinepError(
            f"batches={batches}, quantile={quantile}: allowed are at least 1, and between 0 and 1"
        )
    network, x = bench.trainer().network, bench.dataset.train.images[:IMAGES]
    network.free_steps = 2 * recipe.learning.free_steps
    fresh = [coupling.scale.detach().mean().item() for coupling in network.couplings]
    before = _measured(network, x)[0]
    for done in range(ROUNDS):
        # Layers answer to each other: later rounds go half of the way.
        for n in range(layers):
            _wake_layer(network, x, n, shares[n], spreads[n], 1.0 if done < 3 else 0.5)
    after, found = _measured(network, x)
    grown = [c.scale.detach().mean().item() for c in network.couplings]
    old, bias = recipe.network.gain, [_shift(recipe, network, n, bench.seed) for n in range(layers)]
    woken = replace(
        recipe,
        name=f"{recipe.name}-awake",
        summary=f"{recipe.name} with gains, biases and taus found by binep tune --activity",
        network=replace(
            recipe.network,
            gain=[
                _short(nth(old, n) * now / then)
                for n, (now, then) in enumerate(zip(grown, fresh, strict=True))
            ],
            bias=bias,
        ),
        paper=PaperKeys(),
    )
    return Woken(_with_taus(bench, woken, batches, quantile), before, after, found)


def _binary_layers(recipe: Recipe) -> int:
    """How many layers a recipe's network of bits has; an error if it is none."""
    with torch.device("meta"):
        network, learning = recipe.build_network(), recipe.build_learning()
    if not (network.neuron.binary and all(c.binary for c in network.couplings)):
        raise BinepError(
            f"recipe {recipe.name}: activity is that of binary neurons, allowed are binary "
            "activations and weights"
        )
    if not isinstance(learning, EquilibriumPropagation) or recipe.optimizer.gamma is None:
        raise BinepError(f"recipe {recipe.name}: allowed is learning.method='ep'")
    return len(network.layer_shapes)


def _one_each(name: str, values: Sequence[float], layers: int, most: float) -> list[float]:
    found = [*values] * layers if len(values) == 1 else [*values]
    if len(found) != layers or not all(0 < value < most for value in found):
        limit = "above 0" if most == math.inf else f"between 0 and {most:g}"
        raise BinepError(f"{name}={[*values]}: allowed is one number or {layers}, each {limit}")
    return found


@torch.no_grad()
def _rest(network: Network, x: Tensor) -> tuple[Clamped, list[Tensor], list[Tensor]]:
    """The mini-batch clamped, the drives of all layers at rest, and what they send."""
    clamped = network.clamp(x)
    free = relax(network, clamped, network.initial(clamped), network.free_steps, tolerance=0.0)
    sent = network.activity(free.state)
    return clamped, network.drives(clamped, sent, range(len(sent))), sent


def _measured(network: Network, x: Tensor) -> tuple[list[float], list[float]]:
    """The share of each layer that is on, and the spread of its drive from below."""
    clamped, _, sent = _rest(network, x)
    spreads = [_spread(network, n, [clamped.x, *sent][n]) for n in range(len(sent))]
    return [bits.float().mean().item() for bits in sent], spreads


@torch.no_grad()
def _spread(network: Network, n: int, below: Tensor) -> float:
    """Standard deviation over images of the drive from below, averaged over neurons."""
    drive, _ = network.couplings[n].up(below)
    return drive.flatten(1).std(0).mean().item()


@torch.no_grad()
def _wake_layer(
    network: Network, x: Tensor, n: int, share: float, spread: float | None, stride: float
) -> None:
    """Move the gain below a layer and its bias towards what is asked."""
    coupling, threshold = network.couplings[n], getattr(network.neurons[n], "threshold", 0.5)
    clamped, _, sent = _rest(network, x)
    if spread is not None and (now := _spread(network, n, [clamped.x, *sent][n])) > 0:
        coupling.scale.mul_((spread / now) ** stride)
    _, drives, _ = _rest(network, x)
    values = drives[n].flatten()
    values = values[:: -(-len(values) // MOST_STATES)].double().sort().values
    at = values[min(int((1 - share) * len(values)), len(values) - 1)]
    assert coupling.bias is not None
    coupling.bias.add_(((threshold - at) * stride).to(coupling.bias.dtype))


def _shift(recipe: Recipe, network: Network, n: int, seed: int) -> float:
    """What a recipe adds to the biases that are drawn, to arrive at a network's."""
    drawn = recipe.build_network(runs.random_streams(seed)["init"]).couplings[n].bias
    bias = network.couplings[n].bias
    assert bias is not None and drawn is not None
    moved = (bias.detach().cpu() - drawn.detach()).mean().item()
    return _short(nth(recipe.network.bias, n) + moved)


def _with_taus(bench: Workbench, recipe: Recipe, batches: int, quantile: float) -> Recipe:
    """The recipe with the quantile of each coupling's |m| after some mini-batches as its tau."""
    gamma = recipe.optimizer.gamma
    assert isinstance(gamma, list)
    # No sum of so few gradients reaches it.
    still = replace(recipe.optimizer, tau=[1e6] * len(gamma))
    trainer = bench.trainer(replace(recipe, optimizer=still))

    def keep_going() -> bool:
        return trainer.progress.position < batches * trainer.batch_size

    with runs.fitting_threads(trainer):
        trainer.epoch(keep_going)
    taus, bop = [], trainer.optimizers.bop
    assert bop is not None
    for n, coupling in enumerate(trainer.network.couplings):
        values = bop.compared(coupling.signs).detach().abs().flatten()
        tau = values.sort().values[min(int(quantile * len(values)), len(values) - 1)].item()
        if tau == 0:
            raise BinepError(
                f"coupling {n}: {100 * quantile:g} % of its weights have no gradient at all after "
                f"{batches} mini-batches: ask for more activity, more batches or a higher quantile"
            )
        taus.append(_short(tau))
    return replace(recipe, optimizer=replace(recipe.optimizer, tau=taus))


def _short(value: float) -> float:
    """Three digits: more would pretend to mean something."""
    return float(f"{value:.2e}")


def render(woken: Woken) -> str:
    """A line per layer: what was found, and what it does."""
    keys = woken.recipe.network, woken.recipe.optimizer
    header = ["layer", "on before", "on now", "spread", "gain", "bias", "tau"]
    rows = [
        [
            str(n + 1),
            f"{100 * woken.before[n]:.1f} %",
            f"{100 * woken.after[n]:.1f} %",
            f"{woken.spread[n]:.2g}",
            f"{nth(keys[0].gain, n):.3g}",
            f"{nth(keys[0].bias, n):.3g}",
            f"{nth(keys[1].tau or 0.0, n):.2e}",
        ]
        for n in range(len(woken.before))
    ]
    return "\n".join(
        [
            text_table(header, rows),
            "",
            f"on: share of neurons and of {IMAGES} training images, at rest; spread: standard "
            "deviation over them of what comes from below.",
        ]
    )
