"""Every recipe's own network, at full width and with its own phases, against the reference.

Networks of binary activations agree in every bit. Those of real ones cannot be compared as they
are: through max-pooling there are several places to come to rest, rounding decides which, and
float32 in another order of summation has gradients that hardly resemble each other. So inner
couplings are made weak (`network.gain`) until a step brings any two states closer together; all
layers, kernels and phases stay. The nudge is made strong, so that after
several weak layers it is still far above what rounding makes. What then remains are places of a
pool that are nearly equal, and how much they change is measured on the reference itself, in
float64, with what is sent rounded as coarsely as an engine may: an engine has to come as close to
the truth as `FACTOR` times that, and for at least half of the couplings that must say something.

For each coupling two numbers are compared. The relative distance of the gradient catches what is
wrong in many places: weights or taps that are read where they do not belong. Its projection on the
true gradient, in which the accidents of rounding cancel, catches what is too large or too small: a
factor wrong by some per cent, or one of 9 samples left out.

Without a GPU the same is done for small versions of the recipes, on the engines of the CPU.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases import GPU
from torch import Tensor

from binep import HardSigmoid
from binep.engines.select import select_engine
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

DEVICE = torch.device("cuda" if GPU else "cpu")
on_gpu = pytest.mark.skipif(not GPU, reason="full width is for a GPU")

NORM = 0.45  # of inner couplings: below 1/2 there is one place to come to rest
FACTOR = 3.0
COARSE = 2.0**-11  # float16 between 1/2 and 1
FURTHEST = 0.5  # what is wrong in a quarter of all places
PROJECTED = 0.03

# A shifted or scheduled recipe has the network and the phases of the one it extends; one for
# Fashion-MNIST has those of MNIST's.
NAMES = [
    name
    for name in recipes.names()
    if not name.endswith(("-schedule", "-shifted", "-awake-plain"))
    and not name.startswith(("digits", "fashion"))
]
BINARY = [n for n in NAMES if recipes.load(n).network.activations == "binary"]
REAL = [n for n in NAMES if n not in BINARY]


@dataclass(frozen=True)
class Rounded(HardSigmoid):
    """Sends multiples of `COARSE`; errors travel back as if it did not."""

    offset: float = 0.0

    def __call__(self, state: Tensor) -> Tensor:
        sent = state.clamp(0, 1)
        rounded = ((sent / COARSE + self.offset).round() - self.offset) * COARSE
        return sent + (rounded.clamp(0, 1) - sent).detach()


def small(name: str) -> list[str]:
    """Overrides that shrink a recipe's layers and leave their kinds."""
    network, found = recipes.load(name).network, ["training.batch_size=9"]
    found += [f"network.per_class={min(network.per_class, 5)}"]
    if network.conv:
        found.append(f"network.conv={[8, 12, 16, 16][: len(network.conv)]}")
    if network.dense:
        found.append(f"network.dense={[65, 48][: len(network.dense)]}")
    return found


def weakened(name: str, overrides: list[str]) -> Recipe:
    """The recipe with weak inner couplings, and a nudge so strong that it still reaches all."""
    recipe = recipes.load(name, overrides)
    gains = [1.0]
    for coupling in list(recipe.build_network().couplings)[1:]:
        kernel = coupling.synapses.kernel
        fans = kernel[0].numel() ** 0.5 + (kernel.numel() / kernel.shape[1]) ** 0.5
        gains.append(NORM / fans / float(coupling.weight.detach().abs().mean()))
    nudge = []
    if recipe.learning.method == "ep":
        deep = len(recipe.network.dense) > 1
        beta = [6.0 if deep else 2.0, 2.0, 8.0, 8.0, 40.0][len(recipe.network.conv)]
        # Both signs together make twice the change.
        beta /= 2 if recipe.learning.sign == "centered" else 1
        nudge = [f"learning.beta={beta}", "learning.nudge=constant"]
    return recipes.load(name, [*overrides, f"network.gain={gains}", *nudge])


def images(recipe: Recipe, batch: int) -> tuple[Tensor, Tensor]:
    """Blurred noise with dark parts, as uint8 pixels or normalised, and labels."""
    generator = torch.Generator().manual_seed(0)
    network = recipe.build_network()
    flat = network.input_shape
    shape = flat if len(flat) == 3 else (1, 28, 28)
    noise = torch.randn(batch, *shape, generator=generator)
    noise = torch.nn.functional.avg_pool2d(noise, 3, 1, 1)
    pixels = (400 * noise).clamp(0, 255).byte()
    x = (pixels / 255 - 0.3) / 0.25 if recipe.data.name == "cifar10" else pixels
    return x.to(DEVICE), torch.randint(10, (batch,), generator=generator).to(DEVICE)


def trained(
    recipe: Recipe, engine: str, batch: int, count: int = 1, **as_reference: Any
) -> tuple[dict[str, Tensor], Any, Any]:
    """Gradients that mini-batches have left behind, what they counted, and the network."""
    network = recipe.build_network(torch.Generator().manual_seed(0))
    if "neuron" in as_reference:
        network.neuron = as_reference["neuron"]
    network = network.to(DEVICE, as_reference.get("dtype", torch.float32))
    optimizers = recipe.build_optimizers(network, torch.Generator(DEVICE).manual_seed(0))
    learning = recipe.build_learning(torch.Generator().manual_seed(0))
    subject = select_engine(engine, network, learning, optimizers)
    before = {name: p.detach().double().clone() for name, p in network.named_parameters()}
    x, labels = images(recipe, batch)
    x = x.to(as_reference.get("dtype", x.dtype)) if x.is_floating_point() else x
    for _ in range(count):
        subject.train(x, labels)
    tally = subject.collect()
    gradients = {}
    bop = optimizers.bop
    for name, p in network.named_parameters():
        if bop is not None and name.endswith("signs"):
            gradients[name] = bop.momentum(p).double()
        elif not name.endswith("bias"):
            gradients[name] = p.detach().double() - before[name]
    return gradients, tally, network


def assert_close(recipe: Recipe, engine: str, batch: int) -> None:
    truth, counted, _ = trained(recipe, "reference", batch, dtype=torch.float64)
    rough = [
        trained(recipe, "reference", batch, dtype=torch.float64, neuron=Rounded(offset))
        for offset in (0.0, 0.5)
    ]
    found, tally, _ = trained(recipe, engine, batch)
    assert tally.samples == batch
    assert tally.loss == pytest.approx(counted.loss, rel=2e-3)
    slack, uncertain = 0.05 if recipe.network.conv else 0.005, []
    for name, expected in truth.items():
        if name.endswith("scale"):
            continue  # so few numbers: they follow from what is sent, as the signs' gradients do
        size = float(expected.norm())
        assert size > 0, name
        reach = max(float((expected - each[name]).norm()) for each, _, _ in rough) / size
        bound = slack + FACTOR * reach
        gap = float((found[name] - expected).norm()) / size
        assert gap < bound, (name, gap, bound)
        along = float((found[name] * expected).sum()) / size**2
        assert abs(along - 1) < PROJECTED + reach, (name, along, reach)
        uncertain += [name] if bound > FURTHEST else []
    couplings = len(recipe.network.conv) + len(recipe.network.dense) + 1
    assert len(uncertain) <= couplings // 2, f"bounds too wide to say anything: {uncertain}"


def assert_same(recipe: Recipe, engine: str, batch: int, count: int) -> None:
    one, counted, network = trained(recipe, "reference", batch, count)
    two, tally, other = trained(recipe, engine, batch, count)
    assert (tally.wrong, tally.flips) == (counted.wrong, counted.flips)
    for name, momentum in one.items():
        assert torch.equal(momentum, two[name]), name
    for (name, p), q in zip(network.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.parametrize("name", BINARY)
def test_small_binary_recipes_have_the_bits_of_the_reference(name: str):
    pytest.importorskip("numba")
    assert_same(recipes.load(name, small(name)), "auto", 9, 3)


@pytest.mark.parametrize("name", [n for n in REAL if not n.endswith(("-fp", "-bptt"))])
def test_small_real_recipes_agree_with_the_reference(name: str):
    pytest.importorskip("numba")
    recipe = weakened(name, small(name))
    assert_close(recipe, "auto", 9)


@on_gpu
@pytest.mark.parametrize("batch", [64, 9])
@pytest.mark.parametrize("name", BINARY)
def test_binary_recipes_have_the_bits_of_the_reference(name: str, batch: int):
    assert_same(recipes.load(name), "cuda", batch, 20 if batch == 64 else 3)


@on_gpu
@pytest.mark.parametrize("batch", [64, 9])
@pytest.mark.parametrize("name", REAL)
def test_real_recipes_agree_with_the_reference(name: str, batch: int):
    assert_close(weakened(name, []), "cuda", batch)
