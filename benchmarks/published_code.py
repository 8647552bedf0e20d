"""What details in which the published code differs from binep change, with the same draws.

    python benchmarks/published_code.py [--images 16] [--data-dir DIR]

Each network is drawn once and sees the same images; what is compared is a gradient, coupling by
coupling, as binep computes it and with the detail as published. Networks are fresh: nothing here
says what a detail does to a whole training. docs/results/differences.md shows what this prints.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from binep.core.couplings import ConvPool
from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, fill_gradients
from binep.core.network import Network
from binep.core.optim import assign_optimizers
from binep.core.relaxation import Nudge, Relaxation, relax
from binep.data import Split, load
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

ROUNDED_TO = 4  # decimal digits of an initial alpha, as published


def drawn(recipe: Recipe) -> Network:
    return recipe.build_network(torch.Generator().manual_seed(0))


def weight_gradients(network: Network) -> list[Tensor]:
    found = [coupling.synapses.kernel.grad for coupling in network.couplings]
    return [gradient.clone() for gradient in found if gradient is not None]


def cosines(ours: list[Tensor], theirs: list[Tensor]) -> str:
    pairs = zip(ours, theirs, strict=True)
    found = (
        functional.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0)
        for a, b in pairs
    )
    return ", ".join(f"{float(each):.3f}" for each in found)


def phases(
    network: Network, recipe: Recipe, images: Tensor, labels: Tensor
) -> tuple[list[Relaxation], list[Relaxation]]:
    """Free and nudged phase, each with the switches at its end and those of its last step."""
    keys, clamped = recipe.learning, network.clamp(images)
    nudge = Nudge(network.target(labels), keys.beta, keys.nudge)
    own, last = list[Relaxation](), list[Relaxation]()
    state = network.initial(clamped)
    for steps, pull in ((keys.free_steps, None), (keys.nudged_steps, nudge)):
        before = relax(network, clamped, state, steps - 1, pull)
        end = relax(network, clamped, before.state, 1, pull)
        state = end.state
        own.append(end)
        last.append(replace(end, switches=before.switches))
    return own, last


def gradients_of(
    network: Network, recipe: Recipe, images: Tensor, ends: list[Relaxation]
) -> list[Tensor]:
    free, nudged = ends
    fill_gradients(network, network.clamp(images), nudged, free, recipe.learning.beta)
    return weight_gradients(network)


def rounded_alphas(name: str) -> str:
    """How many different alphas of each convolution are left, and the largest relative change."""
    with torch.no_grad():
        network = drawn(recipes.load(name))
        told = []
        for n, coupling in enumerate(network.couplings, start=1):
            if isinstance(coupling, ConvPool):
                left = (coupling.scale * 10**ROUNDED_TO).round() / 10**ROUNDED_TO
                change = float(((left - coupling.scale).abs() / coupling.scale).max())
                told.append(f"{n}: {len(left.unique())} of {len(left)}, {100 * change:.2f} %")
    return "; ".join(told)


def rounding(name: str, split: Split) -> str:
    recipe = recipes.load(name)
    found = []
    for is_rounded in (False, True):
        network = drawn(recipe)
        if is_rounded:
            with torch.no_grad():
                for coupling in network.couplings:
                    coupling.scale.copy_((coupling.scale * 1e4).round() / 1e4)
        ends, _ = phases(network, recipe, split.images, split.labels)
        found.append(gradients_of(network, recipe, split.images, ends))
    return cosines(*found)


def last_switches(name: str, split: Split) -> str:
    recipe = recipes.load(name)
    network = drawn(recipe)
    own, last = phases(network, recipe, split.images, split.labels)
    ours = gradients_of(network, recipe, split.images, own)
    return cosines(ours, gradients_of(network, recipe, split.images, last))


def ties(name: str, split: Split, steps: int) -> str:
    """Pools whose maximum is there more than once, and winners that float sums choose otherwise."""
    recipe = recipes.load(name)
    network = drawn(recipe)
    clamped = network.clamp(split.images)
    state = relax(network, clamped, network.initial(clamped), steps).state
    below, told = [clamped.x, *network.activity(state)], []
    for n, coupling in enumerate(network.couplings):
        if not isinstance(coupling, ConvPool):
            continue
        numbers = coupling.numbers(below[n])
        maps = functional.conv2d(numbers, coupling.synapses.kernel, padding=coupling.padding)
        best, winners = functional.max_pool2d(maps, coupling.pool, return_indices=True)
        spread = functional.interpolate(best, scale_factor=coupling.pool, mode="nearest")
        height, width = spread.shape[-2:]
        tied = (
            functional.avg_pool2d((maps[..., :height, :width] == spread).float(), coupling.pool)
            * coupling.pool**2
        )
        floats = functional.conv2d(
            numbers / 255 if n == 0 else numbers,
            coupling.weight,
            coupling.bias,
            padding=coupling.padding,
        )
        other = functional.max_pool2d(floats, coupling.pool, return_indices=True)[1]
        shares = (float((tied > 1.5).float().mean()), float((other != winners).float().mean()))
        told.append(f"{n + 1}: {100 * shares[0]:.1f} % tied, {100 * shares[1]:.1f} % other winners")
    return "; ".join(told)


def biased_alphas(name: str, split: Split) -> str:
    """Gradients of convolutions' alphas with the bias inside the product, as published."""
    recipe = recipes.load(name)
    network = drawn(recipe)
    (free, nudged), _ = phases(network, recipe, split.images, split.labels)
    gradients_of(network, recipe, split.images, [free, nudged])
    ours, theirs = list[Tensor](), list[Tensor]()
    sides = [network.activity(end.state, nudged=True) for end in (free, nudged)]
    for n, coupling in enumerate(network.couplings):
        if isinstance(coupling, ConvPool):
            difference = (sides[1][n] - sides[0][n]).sum((0, 2, 3)) / len(split)
            bias, gradient = coupling.bias, coupling.scale.grad
            assert bias is not None and gradient is not None
            ours.append(gradient)
            theirs.append(gradient - bias.detach() * difference / recipe.learning.beta)
    return cosines(ours, theirs)


def more_steps_back(name: str, split: Split) -> str:
    recipe, found = recipes.load(name), []
    keys = recipe.learning
    for last in (keys.nudged_steps, keys.nudged_steps + 1):
        network = drawn(recipe)
        learning = BackpropThroughTime(keys.free_steps, last, pulls_at=keys.pulls_at)
        learning.backward(network, split.images, split.labels)
        found.append(weight_gradients(network))
    return cosines(*found)


def momenta_at_tau(recipe: Recipe, split: Split) -> str:
    """How often |m| is tau to the last bit, so that `>` and `>=` differ."""
    network, keys = drawn(recipe), recipe.optimizer
    optimizers = assign_optimizers(
        network, gamma=keys.gamma, tau=keys.tau, lr_bias=keys.lr_bias, lr_scale=keys.lr_scale
    )
    learning = recipe.learning
    ep = EquilibriumPropagation(
        learning.free_steps,
        learning.nudged_steps,
        learning.beta,
        learning.sign,
        learning.nudge,
        generator=torch.Generator().manual_seed(0),
    )
    equal = seen = batches = 0
    assert optimizers.bop is not None
    for images, labels in zip(split.images.split(64), split.labels.split(64), strict=True):
        ep.backward(network, images, labels)
        optimizers.step()
        batches += 1
        for group in optimizers.bop.param_groups:
            for p in group["params"]:
                state = optimizers.bop.state[p]
                threshold = torch.tensor(group["tau"] / state["decay"], dtype=torch.float32)
                equal += int((state["momentum"].abs() == threshold).sum())
                seen += p.numel()
    return f"{equal} of {seen:.2e} momenta in {batches} mini-batches"


def main() -> None:
    usual = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=usual)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    train = load("mnist", data_dir=options.data_dir, offline=True).train

    def first(count: int) -> Split:
        return Split(train.images[:count], train.labels[:count])

    split, few = first(options.images), first(4)
    narrow = recipes.load("mnist-1fc-wa", ["network.dense=[1024]", "optimizer.tau=2e-7"])
    for name in ("mnist-conv-w", "cifar10-conv-w", "mnist-conv-wa"):
        print(f"alphas left after rounding, {name}: {rounded_alphas(name)}", flush=True)
    print(f"rounding of alphas, mnist-1fc-w: {rounding('mnist-1fc-w', split)}", flush=True)
    print(f"rounding of alphas, mnist-conv-w: {rounding('mnist-conv-w', split)}", flush=True)
    print(f"last step's switches, mnist-conv-w: {last_switches('mnist-conv-w', split)}", flush=True)
    print(f"pools, mnist-conv-wa: {ties('mnist-conv-wa', few, 20)}", flush=True)
    print(f"pools, mnist-conv-w: {ties('mnist-conv-w', few, 40)}", flush=True)
    print(f"bias in alphas, mnist-conv-w-a: {biased_alphas('mnist-conv-w-a', split)}", flush=True)
    for name in ("mnist-1fc-w-bptt", "mnist-2fc-w-bptt"):
        print(f"a step more through time, {name}: {more_steps_back(name, split)}", flush=True)
    print(f"> and >=, 784-1024-100 of bits: {momenta_at_tau(narrow, first(1920))}", flush=True)


if __name__ == "__main__":
    main()
