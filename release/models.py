"""Make a folder of pretrained networks: `python release/models.py [NAME=]RUN... --to FOLDER`.

Each run gives `NAME.safetensors`, a bit per weight, and `NAME.md`, a card with what is known about
it; `README.md` lists all of them. NAME is the recipe's, unless it is given. Give any one seed:
choosing the best one by its test error would make that error worthless.
"""

import argparse
import hashlib
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from binep.deploy import packed
from binep.deploy.export import Options, export
from binep.deploy.pretrained import SUFFIX
from binep.deploy.runtime import Runtime
from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.studies.evidence import reached
from binep.training import recipe as recipes
from binep.training.runs import Run, open_run

# What the images are allowed for; binep's own files are under the MIT licence.
DATA_LICENCES = {
    "digits": "UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
    "mnist": "MNIST, CC BY-SA 3.0",
    "fashion-mnist": "Fashion-MNIST, MIT",
    "cifar10": "CIFAR-10, no licence stated by its authors",
}


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
        "licence": "MIT",
    }
    lines = [f"# {model.name}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows.items()]
    lines += ["", "```sh", f"binep predict {model.name} image.png --resize", "```", ""]
    return "\n".join(lines)


def _as_shipped(run: Run) -> bool:
    shipped = recipes.load(str(run.record["recipe"]))
    return recipes.plain(shipped) == recipes.plain(run.recipe)


def index(models: list[Model]) -> str:
    lines = [
        "# Pretrained networks",
        "",
        "Put these files into a folder that `$BINEP_MODELS` names, or into binep's cache folder:",
        "then `binep predict NAME image.png` reads pictures with them.",
        "",
        "| name | network | test error | bytes |",
        "|---|---|---|---|",
    ]
    for model in sorted(models, key=lambda each: each.name):
        link = f"[{model.name}]({model.name}.md)"
        layers = "-".join(map(str, model.layers))
        lines.append(f"| {link} | {layers} | {model.error:.2f} % | {model.size:,} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    words = parser.parse_args()
    make_folder(words.to)
    named = [word.rpartition("=") for word in words.runs]
    models = [add(open_run(run), words.to, words.data_dir, name or None) for name, _, run in named]
    write_whole(words.to / "README.md", index(models))
    for model in models:
        print(f"{model.name}: {model.error:.2f} %, {model.size:,} bytes")


if __name__ == "__main__":
    main()
