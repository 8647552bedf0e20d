"""Make a folder of pretrained networks: `python release/models.py RUN... --to FOLDER`.

Each run gives `NAME.safetensors`, a bit per weight, and `NAME.md`, a card with what is known about
it; `README.md` lists all of them. NAME is the recipe's. Which seed is given decides nothing but
which of equals it is: choosing the best one by its test error would make that error worthless.
"""

import argparse
import hashlib
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


def add(run: Run, to: Path, data_dir: Path | None = None) -> Model:
    """Pack a run's network, measure the file itself on all test images, and write its card."""
    recipe = run.recipe
    if not run.finished:
        raise BinepError(f"{run.folder} is not finished: allowed are trainings that are")
    name = str(run.record["recipe"])
    with tempfile.TemporaryDirectory() as folder:
        (made,) = export(run, Path(folder), "packed", Options(), data_dir=data_dir)
        content = made.read_bytes()
    test = run.dataset(device="cpu", data_dir=data_dir).test
    classes = Runtime(packed.loads(content)).predict(test.images.numpy())
    error = 100 * float(np.mean(classes != test.labels.numpy()))
    model = Model(
        name, run, len(content), hashlib.sha256(content).hexdigest(), error, len(test.images)
    )
    write_whole(to / f"{name}{SUFFIX}", content)
    write_whole(to / f"{name}.md", card(model, recipe.summary))
    return model


def card(model: Model, summary: str) -> str:
    run, known = model.run, reached(model.name)
    if known is None:
        spread = "no other seeds"
    else:
        deviation = "" if known.test_sd is None else f" ± {known.test_sd:.2f}"
        spread = f"{known.test:.2f}{deviation} % over {known.n} seeds in binep's evidence"
    data = run.recipe.data.name
    rows = {
        "network": summary,
        "trained on": f"{data} ({DATA_LICENCES.get(data, 'see its source')})",
        "recipe": f"`binep train {model.name} --seed {run.record['seed']}`",
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
        what = model.run.recipe.summary
        link = f"[{model.name}]({model.name}.md)"
        lines.append(f"| {link} | {what} | {model.error:.2f} % | {model.size:,} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    words = parser.parse_args()
    make_folder(words.to)
    models = [add(open_run(run), words.to, words.data_dir) for run in words.runs]
    write_whole(words.to / "README.md", index(models))
    for model in models:
        print(f"{model.name}: {model.error:.2f} %, {model.size:,} bytes")


if __name__ == "__main__":
    main()
