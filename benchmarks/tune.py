"""Does `binep tune` find its way from gammas and taus that are far off?

    python benchmarks/tune.py [RECIPE...] [--data-dir DIR] [--epochs 5] [--factor 30] [--to FILE]
                              [--starts NAME...] [--seeds 1] [--compare 3] [--device auto]

From each start the recipe is tuned; what comes out is trained for --epochs epochs and compared with
the recipe as it ships and as it started, all on validation images (the last 5,000 of the training
set), never on the test set. Goal: within 0.5 of the recipe as it ships. Prints a table, and writes
everything that was tried into --to (docs/results/choices.md shows evidence/tuning.json); starts
that are there already are left out.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from binep.engines.select import select_device
from binep.files import write_whole
from binep.report import figures
from binep.studies import compare as choices
from binep.studies import tune
from binep.studies.detail_pages import TUNING, tuning_table
from binep.studies.evidence import read_json, rounded
from binep.studies.workbench import Workbench
from binep.training import provenance
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

# What gamma and tau are multiplied by, in powers of the factor.
STARTS = {
    "both too large": (1, 1),
    "both too small": (-1, -1),
    "tau too large": (0, 1),
    "tau too small": (0, -1),
    "gamma too large": (1, 0),
    "gamma too small": (-1, 0),
}


def misplaced(recipe: Recipe, gamma: float, tau: float) -> Recipe:
    """A recipe whose gammas and taus are so many times too large; gamma at most 1."""
    rates = tune.Rates.of(recipe)
    moved = [min(g * gamma, 1.0) for g in rates.gamma], [t * tau for t in rates.tau]
    return tune.Rates(*moved).put_into(recipe)


def known(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial without what was not measured."""
    return {key: value for key, value in trial.items() if value == value}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", default=["mnist-1fc-w", "mnist-1fc-wa"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--compare", type=int, default=3, help="epochs of tune's own comparisons")
    parser.add_argument("--factor", type=float, default=30)
    parser.add_argument("--starts", nargs="*", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    place = {
        "device": options.device,
        "engine": options.engine,
        "data_dir": options.data_dir,
    }

    def measure(label: str, recipe: Recipe) -> figures.Spread:
        """Validation error after --epochs epochs, with seeds that tune has not used."""
        variant = choices.Variant(label, choices.held_out(recipe), [])
        found = choices.compare(
            label, [variant], epochs=options.epochs, seeds=options.seeds, **place
        )
        spread = found.variants[0].error(options.epochs)
        assert spread is not None
        return spread

    asked = {"format": TUNING, "factor": options.factor, "epochs": options.epochs}
    kept: list[dict[str, Any]] = []
    if options.to is not None and options.to.is_file():
        earlier = read_json(options.to, TUNING)
        if asked.items() <= earlier.items():
            kept = earlier["starts"]
    for name in options.recipes:
        shipped = recipes.load(name)
        left = [
            s for s in options.starts if (name, s) not in [(k["recipe"], k["start"]) for k in kept]
        ]
        goal = measure("as it ships", shipped) if left else None
        for start in left:
            gamma, tau = (options.factor**power for power in STARTS[start])
            begun, wrong = time.perf_counter(), misplaced(shipped, gamma, tau)
            found = tune.tune(Workbench.of(wrong, seed=100, **place), epochs=options.compare)
            seconds = time.perf_counter() - begun
            measured = {
                "shipped": goal,
                "started": measure("as it started", wrong),
                "tuned": measure("tuned", found.recipe),
            }
            kept.append(
                {
                    "recipe": name,
                    "start": start,
                    **{key: asdict(spread) for key, spread in measured.items() if spread},
                    **asdict(tune.Rates.of(found.recipe)),
                    "seconds": seconds,
                    "trials": [known(asdict(trial)) for trial in found.trials],
                }
            )
            print(
                f"{name}, {start}: {', '.join(f'{k} {v}' for k, v in measured.items())}", flush=True
            )
            if options.to is not None:
                head = {**asked, **provenance.environment(select_device(options.device))}
                lines = ",\n".join(json.dumps(rounded(each)) for each in kept)
                text = json.dumps(head)[:-1] + f', "starts": [\n{lines}\n]}}\n'
                write_whole(options.to, text)
    header, rows = tuning_table({**asked, "starts": kept})
    print(f"\n{figures.text_table(header, rows, left=4)}")
    print(f"\nValidation errors in % after {options.epochs} epochs; factor {options.factor:g}.")
