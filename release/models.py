"""Make a folder of pretrained networks: `python release/models.py [NAME=]RUN... --to FOLDER`.

Each run gives `NAME.safetensors`, a bit per weight, `NAME.toml`, its recipe, and `NAME.md`, a card
with what is known about it; `index.json` has all hashes, `README.md` lists all cards. NAME is the
recipe's, unless it is given. `--runs FOLDER` takes the finished runs of the best recipe of each
family with seed 0, and says which are missing: another seed that was chosen by its test error
would make that error worthless.
"""

import argparse
import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from binep.deploy import packed
from binep.deploy.export import Options, export
from binep.deploy.pretrained import INDEX, SUFFIX
from binep.deploy.runtime import Runtime
from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.studies.evidence import reached
from binep.training import recipe as recipes
from binep.training.run_folder import find_runs
from binep.training.runs import Run, open_run

ROOT = Path(__file__).parents[1]
# The best recipe of each family, by the errors that `binep recipes` shows.
BEST = (
    *("digits-1fc-w", "digits-1fc-wa", "digits-1fc-wa-bits", "digits-conv-w", "digits-conv-wa"),
    *("mnist-1fc-w-a-shifted", "mnist-1fc-wa-awake", "mnist-1fc-wa-bits"),
    *("mnist-2fc-w-a-shifted", "mnist-2fc-wa-awake"),
    *("mnist-conv-w-a-shifted", "mnist-conv-wa-shifted", "cifar10-conv-w-a-centered"),
)
# What the images are allowed for; binep's own files are under the MIT licence.
DATA_LICENCES = {
    "digits": "UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
    "mnist": "MNIST, CC BY-SA 3.0",
    "fashion-mnist": "Fashion-MNIST, MIT",
    "cifar10": "CIFAR-10, no licence stated by its authors",
}
LICENCE = "MIT"


@dataclass(frozen=True)
class Model:
    """A packed file and what was measured of it."""

    name: str
    run: Run
    size: int
    sha256: str
    error: float
    images: int
    layers: list[int]


def add(run: Run, to: Path, data_dir: Path | None = None, name: str | None = None) -> Model:
    """Pack a run's network, measure the file itself on all test images, and write its card."""
    if not run.finished:
        raise BinepError(f"{run.folder} is not finished: allowed are trainings that are")
    name = name or str(run.record["recipe"])
    with tempfile.TemporaryDirectory() as folder:
        (made,) = export(run, Path(folder), "packed", Options(), data_dir=data_dir)
        content = made.read_bytes()
    test = run.dataset(device="cpu", data_dir=data_dir).test
    network = packed.loads(content)
    classes = Runtime(network).predict(test.images.numpy())
    error = 100 * float(np.mean(classes != test.labels.numpy()))
    seal, layers = hashlib.sha256(content).hexdigest(), [math.prod(s) for s in network.shapes]
    model = Model(name, run, len(content), seal, error, len(test.images), layers)
    write_whole(to / f"{name}{SUFFIX}", content)
    write_whole(to / f"{name}.toml", recipes.dumps(run.recipe))
    write_whole(to / f"{name}.md", card(model))
    return model


def card(model: Model) -> str:
    run, name = model.run, str(model.run.record["recipe"])
    known = reached(name) if _as_shipped(run) else None
    if known is None:
        spread = "no other seeds"
    else:
        deviation = "" if known.test_sd is None else f" ± {known.test_sd:.2f}"
        spread = f"{known.test:.2f}{deviation} % over {known.n} seeds in binep's evidence"
    data = run.recipe.data.name
    rows = {
        "network": "-".join(map(str, model.layers)),
        "trained on": f"{data} ({DATA_LICENCES.get(data, 'see its source')})",
        "recipe": f"{name}, as [{model.name}.toml]({model.name}.toml) has it: "
        f"`binep train {model.name}.toml --seed {run.record['seed']}`",
        "epochs": f"{len(run.metrics)}",
        "test error": f"{model.error:.2f} % of {model.images:,} test images, measured on this file",
        "seeds": f"seed {run.record['seed']}, not chosen among several; {spread}",
        "made by": f"binep {run.record['binep']}, commit {run.record.get('commit') or 'unknown'}",
        "size": f"{model.size:,} bytes, one bit per weight",
        "SHA-256": f"`{model.sha256}`",
        "licence": f"{LICENCE}, see [LICENSE](LICENSE)",
    }
    lines = [f"# {model.name}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows.items()]
    lines += ["", "```sh", f"binep predict {model.name} image.png --resize", "```", ""]
    return "\n".join(lines)


def _as_shipped(run: Run) -> bool:
    shipped = recipes.load(str(run.record["recipe"]))
    return recipes.plain(shipped) == recipes.plain(run.recipe)


def entry(model: Model) -> dict[str, Any]:
    """What the index says of a model."""
    return {
        "sha256": model.sha256,
        "bytes": model.size,
        "layers": model.layers,
        "recipe": str(model.run.record["recipe"]),
        "seed": model.run.record["seed"],
        "epochs": len(model.run.metrics),
        "data": model.run.recipe.data.name,
        "test_error": model.error,
        "test_images": model.images,
        "licence": LICENCE,
    }


def finish(models: list[Model], to: Path) -> str:
    """Write the index, the list of cards and the licence; returns the SHA-256 of the index."""
    models = sorted(models, key=lambda model: model.name)
    content = json.dumps({"models": {m.name: entry(m) for m in models}}, indent=1) + "\n"
    write_whole(to / INDEX, content)
    write_whole(to / "README.md", overview(models))
    write_whole(to / "LICENSE", (ROOT / "LICENSE").read_bytes())
    return hashlib.sha256(content.encode()).hexdigest()


def overview(models: list[Model]) -> str:
    lines = [
        "# Pretrained networks",
        "",
        "`binep predict NAME image.png --models PLACE` reads a picture with one of them. PLACE is",
        "this folder or the address that it is served from; `$BINEP_MODELS` may name it instead.",
        "",
        "| name | network | test error | bytes |",
        "|---|---|---|---|",
    ]
    for model in models:
        link = f"[{model.name}]({model.name}.md)"
        layers = "-".join(map(str, model.layers))
        lines.append(f"| {link} | {layers} | {model.error:.2f} % | {model.size:,} |")
    return "\n".join([*lines, ""])


def best(folder: Path) -> list[Run]:
    """The finished runs of `BEST` with seed 0 in a folder; says which are missing."""
    wanted = {(name, 0): name for name in BEST}
    found = dict[str, Run]()
    for run in map(open_run, find_runs(folder)):
        name = wanted.get((str(run.record["recipe"]), int(run.record["seed"])))
        if name is not None and run.finished and _as_shipped(run):
            found[name] = run
    print(f"not in {folder}: {', '.join(name for name in BEST if name not in found) or 'none'}")
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("given", nargs="*", metavar="[NAME=]RUN")
    parser.add_argument("--runs", type=Path, help="folder of runs, for the best of each family")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    words = parser.parse_args()
    make_folder(words.to)
    named = [word.rpartition("=") for word in words.given]
    runs = [(name or None, open_run(run)) for name, _, run in named]
    runs += [(None, run) for run in (best(words.runs) if words.runs else [])]
    models = [add(run, words.to, words.data_dir, name) for name, run in runs]
    sha256 = finish(models, words.to)
    for model in models:
        print(f"{model.name}: {model.error:.2f} %, {model.size:,} bytes")
    print(f"served from ADDRESS, its place is ADDRESS#sha256={sha256}")


if __name__ == "__main__":
    main()
