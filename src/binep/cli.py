"""The command line: thin, one function a command. Everything it does is a function elsewhere."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from binep.errors import BinepError

app = typer.Typer(
    name="binep",
    help="Train, study and ship dynamical binary neural networks by Equilibrium Propagation.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch and check data sets.")
app.add_typer(data_app, name="data")

INTERRUPTED = 130  # exit code, as shells have it

# Typer's own base class of a mistake on the command line, whichever click it is built on.
UsageError: Any = typer.BadParameter.__base__

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A name that `binep recipes` lists, or a TOML file.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that binep train wrote.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold runs.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are; else $BINEP_DATA, else the user's cache.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Engine = Annotated[str, typer.Option(help="auto or the name of an engine.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def main() -> None:
    """Run the command line: exit code 0 done, 2 a user's mistake in one line, 1 anything else."""
    try:
        code = app(standalone_mode=False, prog_name="binep") or 0
        # On Ctrl-C some versions of typer return a code where others raise.
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except BinepError as error:
        _fail(str(error))
    except UsageError as error:
        # Without a word the help was asked for, and is printed already.
        if not (message := error.format_message().rstrip(".")):
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "binep"
        _fail(f"{message}. See: {where} --help")
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output, such as `head`, has seen enough.
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"binep: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _say(text: str) -> None:
    """Tell who waits, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


# --- training -----------------------------------------------------------------------------------


@app.command()
def train(
    recipe: RecipeName = "digits-1fc-w",
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    seeds: Annotated[int | None, typer.Option(help="Train this many, from --seed on.")] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder that the run's own folder goes into.")] = Path(
        "runs"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run stopped, bit for bit.")
    ] = False,
    branch: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Begin where another run stands, of a recipe that has been the same so far.",
        ),
    ] = None,
    offline: Offline = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write for TensorBoard.")
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Save within an epoch this often.")
    ] = 300.0,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a network: binary weights and more, by Equilibrium Propagation.

    Without a RECIPE this trains digits-1fc-w, a small network on digits that ship with binep.

    Example: binep train mnist-1fc-w --seed 1 --set learning.beta=0.5
    """
    from binep.engines.select import select_device
    from binep.training import recipe as recipes
    from binep.training import runs
    from binep.training.progress import (
        PlainWatcher,
        TensorBoardWatcher,
        Watcher,
        Watchers,
        usual_watcher,
    )

    if epochs is not None:
        overrides = [*(overrides or []), f"training.epochs={epochs}"]
    if seeds is not None and seeds < 1:
        raise BinepError(f"--seeds {seeds}: allowed is at least 1")
    if branch is not None and seeds is not None:
        raise BinepError("--branch with --seeds: allowed is one --seed, that of the other run")
    if not checkpoint_every >= 0:
        raise BinepError(f"--checkpoint-every {checkpoint_every:g}: allowed is at least 0 seconds")
    chosen = recipes.load(recipe, overrides or [])
    numbers = range(seed, seed + (seeds or 1))

    # A GPU runs several seeds at once in less time than one after the other.
    beside = len(numbers) > 1 and select_device(device).type == "cuda"

    def watch(number: int) -> Watcher:
        watcher = PlainWatcher(f"seed {number}  ") if beside else usual_watcher()
        watcher = Watcher() if as_json else watcher
        folder = out / runs.run_name(chosen, number)
        return Watchers(watcher, TensorBoardWatcher(folder)) if tensorboard else watcher

    options: dict[str, Any] = {
        "out": out,
        "device": device,
        "engine": engine,
        "data_dir": data_dir,
        "offline": offline,
        "resume": resume,
        "branch": branch,
        "checkpoint_seconds": checkpoint_every,
    }
    for number in numbers:
        runs.check_earlier(chosen, number, out, resume)
    if beside:
        watchers = [watch(number) for number in numbers]
        found = iter(runs.train_side_by_side(chosen, numbers, watchers=watchers, **options))
    else:
        found = (runs.train(chosen, seed=n, watcher=watch(n), **options) for n in numbers)
    results = []
    for run in found:
        results.append({"run": str(run.folder), "finished": run.finished, "last": run.last})
        if not as_json:
            _tell_outcome(run, sys.argv[1:])
        if not run.finished and not beside:
            break
    if as_json:
        _print_json(results)
    if not all(result["finished"] for result in results):
        sys.exit(INTERRUPTED)


def _tell_outcome(run: Any, words: list[str]) -> None:
    if run.finished:
        test, epochs = run.last["test_error"], len(run.metrics)
        print(
            f"{run.folder}: test error {test['average']:.2f} % (single neuron "
            f"{test['single']:.2f} %) after {epochs} epoch{'s' * (epochs > 1)}\n"
            f"see it: binep report {shlex.quote(str(run.folder))}"
        )
    else:
        again = words if "--resume" in words else [*words, "--resume"]
        print(f"{run.folder}: stopped and saved\ngo on with: binep {shlex.join(again)}")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or print one completely, as TOML.

    Example: binep recipes mnist-conv-wa > mine.toml
    """
    from dataclasses import asdict

    from binep.training import recipe as known

    if name is not None:
        chosen = known.load(name, overrides or [])
        if as_json:
            _print_json(asdict(chosen))
        else:
            print(known.dumps(chosen), end="")
        return
    found = [known.load(each) for each in known.names()]
    if as_json:
        _print_json([asdict(each) for each in found])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("recipe", no_wrap=True, min_width=max(len(each.name) for each in found))
    for title in ("what it trains", "epochs", "paper's test error"):
        table.add_column(title)
    for each in found:
        paper = "" if each.paper.test is None else f"{each.paper.test:g} %"
        table.add_row(each.name, each.summary, str(each.training.epochs), paper)
    Console().print(table)


# --- looking ------------------------------------------------------------------------------------


@app.command("eval")
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
    """Measure a trained network on its data, or what is left of it on imperfect hardware.

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
        _print_json(
            {"run": str(opened.folder), "split": split, "n": tally.samples, "error": errors}
        )
    else:
        print(
            f"{opened.folder}: {split} error {tally.error(readout):.2f} % "
            f"({tally.wrong[readout]} of {tally.samples} wrong, {readout} readout)"
        )


@app.command()
def report(
    folders: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder that report.html goes into.")] = Path(),
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Write one self-contained HTML page about runs: curves, flips, residuals, misread images.

    Example: binep report runs --out pages
    """
    from binep.report import write_report

    page = write_report(folders, out, device=device, data_dir=data_dir, offline=offline)
    print(f"{page}: open it in a browser")


@app.command()
def gradcheck(
    recipe: RecipeName = "digits-1fc-w",
    run: Annotated[Path | None, typer.Option(help="Check this trained network instead.")] = None,
    beta: Annotated[
        list[float] | None, typer.Option(help="Strength of the nudge; may be repeated.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Nudged steps; else the recipe's.")] = None,
    batch: Annotated[int, typer.Option(help="How many training images.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the network and of the images.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder that the figure goes into.")] = Path(),
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
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
        chosen, network = recipes.load(recipe, overrides or []), None
    result = check.gradcheck(
        chosen,
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
        print(result.to_json())
    else:
        print(f"{check.table(result)}\n\nfigure: {path}")


@app.command()
def reproduce(
    what: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="A table or figure; none: list them.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds of each recipe.")] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="A rehearsal of so many, in folders of its own.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing, print what there is.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Train nothing, read what binep results wrote."),
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs, and of the figure.")] = Path(
        "runs"
    ),
    offline: Offline = False,
) -> None:
    """Train what a table or figure of the paper needs and is missing; print both side by side.

    With --from nothing is trained: WHAT is made of a folder of results or, without WHAT, all of
    it, as RESULTS.md beside that folder.

    Example: binep reproduce table1 --seeds 3
    """
    from binep.report import figures
    from binep.studies import reproduce as studies

    if source is not None:
        _reproduce_from(source, what)
        return
    if what is None:
        for study in studies.STUDIES.values():
            print(f"{study.name:18} {study.title}")
        return
    outcome = studies.reproduce(
        what,
        seeds=seeds,
        out=out,
        epochs=epochs,
        only_show=show,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
    )
    print(outcome.table)
    if outcome.study.kind != "table" and outcome.runs:
        path = out / f"{outcome.study.name}.png"
        figures.save(studies.figure(outcome.study, out, epochs=epochs), path)
        print(f"figure: {path}")
    if not outcome.finished and not show:
        print("stopped and saved; the same command goes on")
        sys.exit(INTERRUPTED)


def _reproduce_from(source: Path, what: str | None) -> None:
    from binep.files import make_folder
    from binep.report import figures
    from binep.studies import reproduce as studies
    from binep.studies.evidence import open_results
    from binep.studies.results_page import DPI, write_overview

    results = open_results(source)
    if what is None:
        print(f"{write_overview(results)}: written, its figures in {source / 'figures'}")
        return
    print(studies.render(what, results))
    if studies.find_study(what).kind != "table":
        path = source / "figures" / f"{what}.png"
        make_folder(path.parent)
        figures.save(studies.figure(what, results), path, dpi=DPI)
        print(f"figure: {path}")


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE...]", help="None: the paper's seven networks."),
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    batches: Annotated[int, typer.Option(help="Mini-batches to time.")] = 20,
    reference_batches: Annotated[int, typer.Option(help="And for the reference engine.")] = 2,
    train: Annotated[int, typer.Option(help="Train for so many mini-batches before.")] = 0,
    data_dir: DataDir = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Time against width, depth, batch and T instead.")
    ] = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Also write .md, .json or (--sweep) .png; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time engines side by side, one mini-batch of each recipe, against the chip's own limits.

    Uses the recipes' data where they are on this machine, made-up images otherwise. What takes
    longer than 20 seconds is timed less often; the table says how often.

    Example: binep bench mnist-1fc-w mnist-1fc-wa --train 300 --out table.md
    """
    from binep.files import check_file
    from binep.report.figures import text_table
    from binep.studies import bench as benches

    files = out or []
    benches.check_out(files, sweep)
    for path in files:
        check_file(path)
    common: dict[str, Any] = {
        "device": device,
        "engine": engine,
        "batches": batches,
        "train": train,
        "data_dir": data_dir,
        "say": _say,
    }
    if sweep:
        found = benches.sweep(names or benches.SWEEP, **common)
    else:
        chosen = names or benches.PAPER
        found = benches.bench(chosen, reference_batches=reference_batches, **common)
    for path in files:
        benches.write(found, path)
    if as_json:
        print(found.to_json())
    else:
        print(f"{found.notes}\n\n{text_table(*found.table, left=2)}")


@app.command()
def results(
    folders: RunFolders,
    to: Annotated[Path, typer.Option(help="Folder that the files go into.")] = Path("results"),
) -> None:
    """Write each run as one small file, for a repository to keep: record, recipe, metrics.

    Example: binep results runs --to results
    """
    from binep.report import open_runs
    from binep.studies.evidence import write_result

    for run in sorted(open_runs(folders), key=lambda run: len(run.metrics)):
        print(
            f"{write_result(run, to)}: {len(run.metrics)} of {run.recipe.training.epochs} epochs, "
            f"{run.record.get('status')}"
        )


@app.command()
def choose(
    recipe: RecipeName,
    variants: Annotated[
        list[str],
        typer.Option(
            "--variant",
            metavar="KEY=VALUE;...",
            help="Keys to change, as for --set, with ; between; may be repeated.",
        ),
    ],
    epochs: Annotated[int, typer.Option(help="Of each variant.")] = 5,
    seeds: Annotated[int, typer.Option(help="How many seeds of each variant.")] = 1,
    trained: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", help="A run of one of them, not to be trained again; may be repeated."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A file to write, and to go on with if it exists.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Compare variants of a recipe on validation images, the last of the training set.

    Example: binep choose mnist-2fc-w --variant "optimizer.lr_bias=[0.2, 0.1, 0.05]" --epochs 10
    """
    from binep.files import check_file
    from binep.studies import compare as choices
    from binep.training import runs

    if to is not None:
        check_file(to)
    choice = choices.compare(
        f"Variants of {recipe}",
        choices.make_variants(recipe, variants),
        epochs=epochs,
        seeds=seeds,
        trained=[runs.open_run(folder) for folder in trained or ()],
        to=to,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
        say=_say,
    )
    print(choices.render(choice))


@app.command()
def tune(
    recipe: RecipeName,
    to: Annotated[
        Path | None, typer.Option(help="A TOML file to write the recipe found to.")
    ] = None,
    batches: Annotated[int, typer.Option(help="Mini-batches of a probe.")] = 300,
    epochs: Annotated[int, typer.Option(help="Of each candidate that is compared.")] = 3,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    overrides: Overrides = None,
) -> None:
    """Find gamma and tau of every coupling by the paper's rule: watch pi, how many weights flip.

    Example: binep tune mnist-1fc-wa --set optimizer.tau=1e-5 --to mine.toml
    """
    from binep.files import check_file
    from binep.studies import tune as tuning
    from binep.training import recipe as recipes

    if to is not None:
        check_file(to)
    found = tuning.tune(
        recipes.load(recipe, overrides or []),
        batches=batches,
        epochs=epochs,
        seed=seed,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
        watch=lambda trial: _say(tuning.line(trial)),
        say=_say,
    )
    print(tuning.render(found))
    if to is not None:
        tuning.write_recipe(found, to)
        print(f"{to}: train it with binep train {to}")


# --- shipping -----------------------------------------------------------------------------------


@app.command()
def export(
    run: RunFolder,
    to: Annotated[Path, typer.Option(help="Folder that the files go into.")],
    format: Annotated[str, typer.Option(help="packed, c or mem.")] = "packed",
    readout: Annotated[str, typer.Option(help="average or single.")] = "average",
    vectors: Annotated[
        int | None, typer.Option(help="Test images that go with c (100) and mem (4); 0: all.")
    ] = None,
    state_bits: Annotated[int, typer.Option(help="Fractional bits of a state in integers.")] = 24,
    learning: Annotated[
        bool, typer.Option("--learning", help="c: the program can go on training.")
    ] = False,
    momentum_bits: Annotated[int, typer.Option(help="Width of a momentum, for --learning.")] = 16,
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Ship a trained network: one packed file, portable C, or memory images for Verilog.

    Example: binep export runs/mnist-1fc-wa-seed0 --to shipped --format c --learning
    """
    from binep.deploy.export import Options
    from binep.deploy.export import export as ship
    from binep.training import runs

    options = Options(readout, vectors, state_bits, momentum_bits if learning else None)
    written = ship(runs.open_run(run), to, format, options, data_dir=data_dir, offline=offline)
    for path in written:
        print(f"{path}  {path.stat().st_size:,} bytes")


@app.command()
def hardware(
    what: Annotated[
        str, typer.Argument(metavar="RUN|RECIPE", help="A run's folder, a recipe's name or file.")
    ],
    costs: Annotated[
        Path | None, typer.Option(help="TOML file with the energy of each operation.")
    ] = None,
    images: Annotated[int, typer.Option(help="Test images to measure on.")] = 100,
    sweep: Annotated[
        Path | None,
        typer.Option(help="Instead: error against each imperfection; folder for the figure."),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="For --sweep: also train at every value, so many epochs.")
    ] = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """What a network costs as hardware: memory, operations, activity, energy; or what it bears.

    Example: binep hardware mnist-1fc-wa --json
    """
    from dataclasses import asdict

    from rich.console import Console

    from binep.files import make_folder
    from binep.hardware import costs as counting
    from binep.hardware import sweep as sweeping

    if images < 1:
        raise BinepError(f"--images {images}: allowed is at least 1")
    opened, recipe, network = _run_or_recipe(what, overrides or [], device)
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
            say=_say,
            keep=lambda found: sweeping.write_numbers(found, sweep),
        )
        for path in sweeping.write(found, sweep):
            print(path)
        return
    x = _first_test_images(recipe, images, device, data_dir, offline)
    counted = counting.report(recipe, network, x, counting.load_costs(costs))
    if as_json:
        _print_json(asdict(counted))
    else:
        Console().print(counting.render(counted))


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
    from binep import data
    from binep.engines.select import select_device

    dataset = data.load(recipe.data.name, data_dir=data_dir, offline=offline)
    return dataset.to(select_device(device)).inputs(dataset.test.images[:count])


# --- data ---------------------------------------------------------------------------------------


@data_app.command("fetch")
def data_fetch(name: str, data_dir: DataDir = None) -> None:
    """Download what is missing of a data set, and verify it.

    Example: binep data fetch mnist
    """
    from binep import data

    for path in data.fetch(name, data_dir=data_dir):
        print(path)


@data_app.command("check")
def data_check(name: str, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say where each file of a data set is, and whether it is whole.

    Example: binep data check cifar10 --data-dir ~/data
    """
    from binep import data

    found = data.check(name, data_dir=data_dir)
    if as_json:
        _print_json([{"file": f.name, "path": str(f.path), "status": f.status} for f in found])
    else:
        for file in found:
            print(f"{file.name}: {file.status}" + (f"  {file.path}" if file.path else ""))
    if any(file.status != "ok" for file in found):
        sys.exit(2)


if __name__ == "__main__":
    main()
