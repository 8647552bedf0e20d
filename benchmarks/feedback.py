"""What a nudge moves in a network of bits, by how much layers hear from above.

    python benchmarks/feedback.py RECIPE [--set KEY=VALUE ...] [--feedback 1 0.5 0.25 0.125]
                                  [--beta 0.25 1] [--activity A [--spread S]] [--images 64]
                                  [--seeds 1] [--data-dir DIR] [--device auto] [--json FILE]

For each factor on feedback a fresh network, woken before if an activity is asked for (as `binep
tune --activity` does), comes to rest on validation images; then it is nudged, with both signs. A
row per layer says how many of its bits are on at rest and what part of the energy is the layer's;
and under each beta which share of bits turn on and off, `net = d (on - off) / beta`, by which EP
moves the layer's biases, and `cos`, of the weights' gradients under +beta and under -beta: 1 where
a nudge of the other sign does the opposite, as it does to first order, and -1 where both do the
same. Each is a mean over images and seeds, with the standard deviation over seeds.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from binep.core import metrics
from binep.core.energy import energy_parts
from binep.core.gradients import fill_gradients
from binep.core.network import Clamped, Network
from binep.core.relaxation import Nudge, Relaxation, relax
from binep.files import write_whole
from binep.report.figures import text_table
from binep.studies.waking import wake
from binep.studies.workbench import Workbench
from binep.training import recipe as recipes
from binep.training.provenance import environment

STEPS = 500  # at most; bits without an inner state rest long before
Row = dict[str, Any]


def fresh(options: argparse.Namespace, feedback: float, seed: int) -> tuple[Network, Workbench]:
    """A fresh network, as active as asked if it is, and where its images are."""
    recipe = recipes.load(options.recipe, [*options.set, f"network.feedback={feedback}"])
    bench = Workbench.of(
        recipe, seed=seed, device=options.device, engine=options.engine, data_dir=options.data_dir
    )
    if options.activity is not None:
        recipe = wake(bench, options.activity, spread=options.spread, batches=1).recipe
    return bench.trainer(recipe).network, bench


@torch.no_grad()
def measured(network: Network, bench: Workbench, options: argparse.Namespace) -> Iterator[Row]:
    """A row per layer of one network."""
    images = bench.dataset.test.images[: options.images]
    target = network.target(bench.dataset.test.labels[: options.images])
    clamped = network.clamp(bench.dataset.inputs(images))
    steps = STEPS if network.dynamics.bits else 2 * bench.recipe.learning.free_steps

    def ended(start: list[torch.Tensor], nudge: Nudge | None = None) -> Relaxation:
        return relax(network, clamped, start, steps, nudge, tolerance=0.0)

    free = ended(network.initial(clamped))
    rest = network.activity(free.state)
    parts = energy_parts(network, clamped, rest)
    rows = [
        {
            "layer": n + 1,
            "on": float(bits.float().mean()),
            "energy": float(parts[n].mean()),
            "steps": free.steps,
            "nudged": {},
        }
        for n, bits in enumerate(rest)
    ]
    for beta in options.beta:
        sides = {sign: ended(free.state, Nudge(target, sign * beta)) for sign in (1, -1)}
        agreed = _agreement(network, clamped, free, sides, beta)
        for sign, side in sides.items():
            sent = network.activity(side.state)
            for n, (row, d) in enumerate(zip(rows, network.energy_factors, strict=True)):
                up, down = (
                    float((a & ~b).float().mean())
                    for a, b in ((sent[n], rest[n]), (rest[n], sent[n]))
                )
                row["nudged"][f"{sign * beta:+g}"] = {
                    "turned_on": up,
                    "turned_off": down,
                    "net": d * (up - down) / (sign * beta),
                    "cos": agreed[n],
                    "steps": side.steps,
                }
    yield from rows


def _agreement(
    network: Network,
    clamped: Clamped,
    free: Relaxation,
    sides: dict[int, Relaxation],
    beta: float,
) -> list[float]:
    """Of each coupling, the cosine of its weights' gradients under beta and under -beta."""
    found = []
    for sign, side in sides.items():
        fill_gradients(network, clamped, side, free, sign * beta)
        found.append({n: g for n, g in metrics.gradients(network).items() if n.endswith("signs")})
    return [*metrics.cosine(*found).values()]


def summed_up(runs: list[list[Row]]) -> list[Row]:
    """Mean and standard deviation over seeds in place of every number, layer by layer."""

    def spread(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: spread([each[key] for each in values]) for key in values[0]}
        return [
            statistics.mean(values),
            statistics.stdev(values) if len(values) > 1 else None,
        ]

    return [
        {"layer": rows[0]["layer"]}
        | {key: spread([row[key] for row in rows]) for key in rows[0] if key != "layer"}
        for rows in zip(*runs, strict=True)
    ]


def table(found: dict[str, list[Row]]) -> str:
    header = ["feedback", "layer", "on", "energy", "beta", "turned on", "off", "net", "cos"]
    body = []
    for feedback, rows in found.items():
        for row in rows:
            for beta, side in row["nudged"].items():
                numbers = (f"{100 * side[k][0]:.2f} %" for k in ("turned_on", "turned_off"))
                more = (f"{side[k][0]:+.4f}" for k in ("net", "cos"))
                on, energy = f"{100 * row['on'][0]:.1f} %", f"{row['energy'][0]:.2f}"
                body.append([feedback, str(row["layer"]), on, energy, beta, *numbers, *more])
    return text_table(header, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--feedback", type=float, nargs="+", default=[1, 0.5, 0.25, 0.125])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.25, 1])
    parser.add_argument("--activity", type=float, nargs="+", default=None)
    parser.add_argument("--spread", type=float, nargs="+", default=None)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", type=Path, help="keep what was measured here")
    options = parser.parse_args()
    found: dict[str, list[Row]] = {}
    for feedback in options.feedback:
        networks = (fresh(options, feedback, seed) for seed in range(options.seeds))
        found[f"{feedback:g}"] = summed_up([list(measured(*each, options)) for each in networks])
        print(table({f"{feedback:g}": found[f"{feedback:g}"]}), flush=True)
        if options.json is not None:
            asked = {k: v for k, v in vars(options).items() if k not in ("data_dir", "json")}
            told = {**asked, "environment": environment(torch.device("cpu")), "found": found}
            write_whole(options.json, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
