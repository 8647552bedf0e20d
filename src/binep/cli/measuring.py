"""Commands that look at what has been trained."""

from pathlib import Path
from typing import Annotated

import typer

from binep.cli.options import (
    AsJson,
    DataDir,
    Device,
    Offline,
    Overrides,
    OwnData,
    Quiet,
    RecipeName,
    RunFolder,
    RunFolders,
    with_data,
)
from binep.cli.output import print_json, say, tell
from binep.errors import BinepError


def evaluate(
    run: RunFolder,
    readout: Annotated[str, typer.Option(help="average or single.")] = "average",
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="hardware.KEY=VALUE", help="On imperfect hardware."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained network on its data, or on simulated imperfect hardware.

    Example: binep eval runs/digits-1fc-w-seed0 --readout single
    """
    from binep.core.network import READOUTS
    from binep.errors import choose
    from binep.hardware.sweep import on_hardware
    from binep.training import runs

    choose(readout, READOUTS, "readout")
    choose(split, ("test", "train"), "split")
    opened = on_hardware(runs.open_run(run), overrides or [])
    tally = opened.evaluate(split, device=device, data_dir=data_dir, offline=offline)
    if as_json:
        errors = {each: tally.error(each) for each in READOUTS}
        print_json({"run": str(opened.folder), "split": split, "n": tally.samples, "error": errors})
    else:
        tell(
            f"{opened.folder}: {split} error {tally.error(readout):.2f} % "
            f"({tally.wrong[readout]} of {tally.samples} wrong, {readout} readout)"
        )


def report(
    folders: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder that report.html goes into.")] = Path(),
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page about runs: curves, flips, residuals, misread images.

    Example: binep report runs --out pages
    """
    from binep.report import write_report

    page = write_report(folders, out, device=device, data_dir=data_dir, offline=offline, say=say)
    tell(f"{page}: open it in a browser")


def gradcheck(
    recipe: RecipeName = "digits-1fc-w",
    run: Annotated[Path | None, typer.Option(help="Check this trained network instead.")] = None,
    beta: Annotated[
        list[float] | None, typer.Option(help="Strength of the nudge; may be repeated.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of nudged steps (overrides the recipe).")
    ] = None,
    batch: Annotated[int, typer.Option(help="Number of training images.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(help="Random seed of the network and the images.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder that the figure goes into.")] = Path(),
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    own_data: OwnData = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare EP's gradients with those of BPTT, layer by layer and step by step, with a figure.

    Example: binep gradcheck mnist-1fc-w --beta 0.3 --beta 0.01 --dtype float64
    """
    from binep.files import make_folder
    from binep.report import figures
    from binep.studies import gradcheck as check
    from binep.training import recipe as recipes
    from binep.training import runs

    make_folder(out)
    if run is not None:
        if overrides:
            raise BinepError(f"--set {overrides[0]} with --run: a run keeps the recipe it has")
        opened = runs.open_run(run)
        chosen, network = opened.recipe, opened.network(device)
    else:
        chosen, network = recipes.load(recipe, with_data(overrides, own_data)), None
    told = any(text.partition("=")[0].strip() == "learning.pulls_at" for text in overrides or ())
    result = check.gradcheck(
        chosen,
        pulls_at=chosen.learning.pulls_at if told else None,
        seed=seed,
        batch=batch,
        steps=steps,
        betas=beta,
        dtype=dtype,
        network=network,
        data_dir=data_dir,
        offline=offline,
        device=device,
    )
    path = out / f"gradcheck-{chosen.name}.png"
    figures.save(check.figure(result), path)
    if as_json:
        tell(result.to_json())
    else:
        tell(f"{check.table(result)}\n\nfigure: {path}")
