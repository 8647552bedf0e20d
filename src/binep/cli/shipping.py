"""Commands that take a trained network elsewhere."""

from pathlib import Path
from typing import Annotated, Any

import typer

from binep.cli.options import (
    AsJson,
    DataDir,
    Device,
    Offline,
    Overrides,
    OwnData,
    Quiet,
    with_data,
)
from binep.cli.output import print_json, say, tell
from binep.errors import BinepError
from binep.registry import BUILT_IN

EXPORTERS = ", ".join(BUILT_IN["binep.exporters"])


def export(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_FILE", help="A run's folder, or a file that binep.save wrote."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder that the files go into.")],
    format: Annotated[str, typer.Option(help=f"{EXPORTERS}.")] = "packed",
    readout: Annotated[str, typer.Option(help="average or single.")] = "average",
    vectors: Annotated[
        int | None,
        typer.Option(help="Test images that go with c, verilog, web (100) and mem (4); 0: all."),
    ] = None,
    state_bits: Annotated[int, typer.Option(help="Fractional bits of a state in integers.")] = 24,
    learning: Annotated[
        bool, typer.Option("--learning", help="c, verilog: what is exported can go on training.")
    ] = False,
    momentum_bits: Annotated[int, typer.Option(help="Width of a momentum, for --learning.")] = 16,
    parallel: Annotated[
        int | None,
        typer.Option(metavar="N", help="verilog: synapses that are summed in a cycle (64)."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="For a file: the data set that it was trained on, to take test images from.",
        ),
    ] = None,
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Ship a trained network: one packed file, C, a Verilog core, memory images, or a web page.

    Example: binep export runs/mnist-1fc-wa-seed0 --to shipped --format c --learning
    """
    from binep.core.network import READOUTS
    from binep.core.saving import load_network
    from binep.deploy import export as shipping
    from binep.errors import choose
    from binep.training import runs

    choose(readout, READOUTS, "readout")
    bits = momentum_bits if learning else None
    options = shipping.Options(readout, vectors, state_bits, bits, parallel)
    if what.is_file():
        dataset = None if data is None else _dataset(data, data_dir, offline)
        network = load_network(what)
        written = shipping.export_network(
            network, to, format, options, dataset=dataset, name=what.stem
        )
    elif data is not None:
        raise BinepError(f"--data {data} with {what}: a run has its data already")
    else:
        run = runs.open_run(what)
        written = shipping.export(run, to, format, options, data_dir=data_dir, offline=offline)
    for path in written:
        tell(f"{path}  {path.stat().st_size:,} bytes")


def _dataset(name: str, data_dir: Path | None, offline: bool) -> Any:
    """A data set by its name, or your own in a file or folder."""
    from binep.data import DATASETS, load
    from binep.data.own import read

    if name in DATASETS or not Path(name).exists():
        return load(name, data_dir=data_dir, offline=offline)
    return read(name)


def predict(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN_FILE_OR_NAME",
            help="A run's folder, a packed file, or the name of a pretrained network.",
        ),
    ],
    pictures: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Pictures to read.")],
    resize: Annotated[
        bool, typer.Option("--resize", help="Scale pictures of another size.")
    ] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Folder of pretrained networks, or its address; may be repeated. "
            "[default: $BINEP_MODELS, then the cache]",
        ),
    ] = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Read pictures with a trained network, and print the class of each.

    Example: binep predict runs/digits-1fc-w-seed0 three.png
    """
    from binep.deploy import pretrained
    from binep.deploy.predict import predict_files

    network = pretrained.find(what, models or (), offline=offline)
    found = predict_files(network, pictures, resize=resize)
    if as_json:
        print_json([{"image": str(p.path), "class": p.name, "scores": p.scores} for p in found])
        return
    for each in found:
        tell(f"{each.path}: {each.name} (score {each.scores[each.label]:.3f})")


def hardware(
    what: Annotated[
        str, typer.Argument(metavar="RUN|RECIPE", help="A run's folder, a recipe's name or file.")
    ],
    costs: Annotated[
        Path | None, typer.Option(help="TOML file with the energy of each operation.")
    ] = None,
    images: Annotated[int, typer.Option(help="Number of test images to measure on.")] = 100,
    sweep: Annotated[
        Path | None,
        typer.Option(help="Instead: error against each imperfection; folder for the figure."),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="For --sweep: also train at every value, for this number of epochs.")
    ] = 0,
    synthesize: Annotated[
        bool,
        typer.Option("--synthesize", help="Instead: cells of its core in Verilog, by Yosys."),
    ] = False,
    parallel: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="For --synthesize: synapses a cycle; may be repeated."),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    own_data: OwnData = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What a network costs as hardware (memory, operations, energy), or its error under faults.

    Example: binep hardware mnist-1fc-wa --json
    """
    from dataclasses import asdict

    from rich.console import Console

    from binep.files import make_folder
    from binep.hardware import costs as counting
    from binep.hardware import sweep as sweeping

    if images < 1:
        raise BinepError(f"--images {images}: allowed is at least 1")
    opened, recipe, network = _run_or_recipe(what, with_data(overrides, own_data), device)
    if sweep is not None:
        if opened is None:
            raise BinepError(f"--sweep with {what}: it needs a trained network, allowed is a run")
        make_folder(sweep)
        found = sweeping.sweep(
            opened,
            epochs=epochs,
            images=images,
            device=device,
            data_dir=data_dir,
            offline=offline,
            say=say,
            keep=lambda found: sweeping.write_numbers(found, sweep),
        )
        for path in sweeping.write(found, sweep):
            tell(path)
        return
    if synthesize:
        cores, taken = _synthesize(recipe, network, images, parallel, data_dir, offline)
        if as_json:
            print_json([asdict(core) for core in cores])
        else:
            from binep.hardware.synthesis import render

            Console().print(render(recipe.name, cores, taken))
        return
    if parallel:
        raise BinepError(f"--parallel {parallel[0]}: allowed with --synthesize")
    x = _first_test_images(recipe, images, device, data_dir, offline)
    counted = counting.report(recipe, network, x, counting.load_costs(costs))
    if as_json:
        print_json(asdict(counted))
    else:
        Console().print(counting.render(counted))


# Cycles differ little from image to image.
_MOST_TIMED = 10


def _synthesize(
    recipe: Any,
    network: Any,
    images: int,
    parallel: list[int] | None,
    data_dir: Path | None,
    offline: bool,
) -> tuple[Any, int]:
    """A network's core for each N, with and without learning; how many images were timed."""
    from binep.deploy.export import learning_rule, store
    from binep.deploy.learning import FixedRule
    from binep.hardware import synthesis

    test = recipe.load_data(data_dir=data_dir, offline=offline).test
    count = min(images, _MOST_TIMED, len(test.labels))
    samples = test.images[:count].numpy(), test.labels[:count].numpy()
    rule = FixedRule(learning_rule(recipe), recipe.hardware.momentum_bits or 16)
    stored = store(network.cpu(), recipe)
    parallels = parallel or synthesis.PARALLELS
    return synthesis.table(stored, rule, *samples, parallels, say=say), count


def _run_or_recipe(what: str, overrides: list[str], device: str) -> tuple[Any, Any, Any]:
    """A run (or None), its recipe, and its network, fresh if it is only a recipe."""
    import torch

    from binep.engines.select import select_device
    from binep.hardware.sweep import on_hardware
    from binep.training import recipe as recipes
    from binep.training import runs

    if Path(what).is_dir():
        opened = on_hardware(runs.open_run(what), overrides)
        return opened, opened.recipe, opened.network(device)
    recipe = recipes.load(what, overrides)
    network = recipe.build_network(torch.Generator().manual_seed(0))
    return None, recipe, network.to(select_device(device))


def _first_test_images(
    recipe: Any, count: int, device: str, data_dir: Path | None, offline: bool
) -> Any:
    from binep.engines.select import select_device

    dataset = recipe.load_data(data_dir=data_dir, offline=offline)
    return dataset.to(select_device(device)).inputs(dataset.test.images[:count])
