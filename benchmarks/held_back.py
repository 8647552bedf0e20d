"""What is lost of a convolutional network's gradients when small differences are not sent.

    python benchmarks/held_back.py [RECIPE or RUN] [--images 16] [--data-dir DIR]

An emulation, in torch, of what `relaxers/conv_delta.py` of the CUDA engine sends: differences of at
least a unit, in float16. For several units of the free phase: when its samples rest, and the
cosines of each coupling's gradient with what it would be if the nudged phase sent everything from
that same rest. Rests themselves cannot be compared: a fresh network comes to another one for any
small change.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from binep.core import metrics
from binep.core.gradients import EquilibriumPropagation, fill_gradients
from binep.core.network import Clamped, Network, State
from binep.core.relaxation import Relaxation, step
from binep.data import load
from binep.training import recipe as recipes
from binep.training.runs import open_run

FIRST = 20_000  # of the training images
SPREAD = 1024.0  # keeps small differences within float16


def follow(value: Tensor, sent: Tensor, unit: float, *, rounded: bool) -> Tensor:
    """What has been sent after a step: nothing new where it would be less than a unit."""
    difference = value - sent
    news = (difference * SPREAD).half().float() / SPREAD if rounded else difference
    return sent + torch.where(difference.abs() < unit, 0.0, news)


def relax_freely(
    network: Network, clamped: Clamped, steps: int, unit: float
) -> tuple[State, State, Tensor]:
    """Where it rests, what has been sent until then, and after how many steps each sample rests."""
    state = network.initial(clamped)
    sent, rests = network.activity(state), torch.zeros(len(clamped.x))
    for t in range(steps):
        state = step(network, clamped, sent)
        before, sent = sent, _send(network.activity(state), sent, unit)
        moved = [(a != b).flatten(1).any(1) for a, b in zip(before, sent, strict=True)]
        rests[torch.stack(moved).any(0)] = t + 1
    return state, sent, rests


def gradients(
    network: Network,
    clamped: Clamped,
    labels: Tensor,
    learning: EquilibriumPropagation,
    rest: tuple[State, State],
    unit: float,
    hold: bool,
    rounded: bool = True,
) -> dict[str, Tensor]:
    """Of all weights, from a rest under a positive nudge that sends what is at least a unit.

    Args:
        hold: whether what the free phase did not send stays unsent.
    """
    state, sent = rest
    unsent = [a - b for a, b in zip(network.activity(state), sent, strict=True)]
    held = unsent if hold else [torch.zeros_like(each) for each in unsent]
    free = Relaxation(sent, network.switches(clamped, sent), torch.zeros(1))
    target, top = network.target(labels), state[-1]
    for _ in range(learning.nudged_steps):
        state = step(network, clamped, sent, learning.beta * (target - top))
        top, activity = state[-1], network.activity(state, nudged=True)
        wanted = [a - h for a, h in zip(activity, held, strict=True)]
        sent = _send(wanted, sent, unit, rounded=rounded)
    nudged = Relaxation(sent, network.switches(clamped, sent), torch.zeros(1))
    fill_gradients(network, clamped, nudged, free, learning.beta)
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def _send(values: State, sent: State, unit: float, *, rounded: bool = True) -> State:
    """The last two layers send in float32, whatever the others do."""
    last = len(sent) - 2
    pairs = enumerate(zip(values, sent, strict=True))
    return [follow(a, b, unit, rounded=rounded and n < last) for n, (a, b) in pairs]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", default="cifar10-conv-w-a", metavar="RECIPE or RUN")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    if Path(given.source).is_dir():
        run = open_run(given.source)
        recipe, network = run.recipe, run.network("cpu")
    else:
        recipe = recipes.load(given.source)
        network = recipe.build_network(torch.Generator().manual_seed(0))
    learning = recipe.build_learning()
    if not isinstance(learning, EquilibriumPropagation) or network.neuron.binary:
        parser.error(f"{given.source}: allowed are real activations that learn by EP")
    dataset = load(recipe.data.name, data_dir=given.data_dir)
    chosen = slice(FIRST, FIRST + given.images)
    clamped = network.clamp(dataset.inputs(dataset.train.images[chosen]))
    labels = dataset.train.labels[chosen]
    for free in (14, 13, 12, 11, 10):
        state, sent, rests = relax_freely(network, clamped, learning.free_steps, 2.0**-free)
        at = (network, clamped, labels, learning, (state, sent))
        exact = gradients(*at, unit=0.0, hold=True, rounded=False)
        print(f"free 2^-{free}: rests after {rests.mean():.0f} steps, at most {rests.max():.0f}")
        for nudged, hold in ((free, False), (14, True), (16, True), (18, True)):
            cosines = metrics.cosine(gradients(*at, unit=2.0**-nudged, hold=hold), exact)
            weights = [f"{c:.3f}" for name, c in cosines.items() if name.endswith("signs")]
            held = "the rest held back" if hold else "all that is left is sent"
            print(f"  nudged 2^-{nudged}, {held}: cosines {' '.join(weights)}", flush=True)


if __name__ == "__main__":
    main()
