"""Commands that train or time many networks, to compare them."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from binep.cli.options import (
    AsJson,
    AtOnce,
    DataDir,
    Device,
    Engine,
    JobParameters,
    Offline,
    On,
    Overrides,
    OwnData,
    Quiet,
    RayAddress,
    RecipeName,
    RunFolders,
    job_parameters,
    with_data,
)
from binep.cli.output import INTERRUPTED, say, tell
from binep.errors import BinepError

PROBE = 300  # mini-batches, unless told otherwise


def reproduce(
    what: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="A table or figure; none: list them.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each recipe.")] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="Rehearse with this number of epochs, in separate folders.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing, print what there is.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Train nothing, read what binep results wrote."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --from: write nothing, see if the pages agree.")
    ] = False,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs, and of the figure.")] = Path(
        "runs"
    ),
    offline: Offline = False,
    on: On = "here",
    at_once: AtOnce = None,
    jobs: JobParameters = None,
    address: RayAddress = None,
    quiet: Quiet = False,
) -> None:
    """Train what a table or figure of the paper needs and is missing; print both side by side.

    With --from nothing is trained: WHAT is made of a folder of evidence or, without WHAT,
    all of it, as RESULTS.md and docs/results beside that folder.

    Example: binep reproduce table1 --seeds 3
    """
    from binep.report import figures
    from binep.studies import reproduce as studies
    from binep.training.progress import QuietWatcher, usual_watcher

    if source is not None:
        _reproduce_from(source, what, check)
        return
    if what is None:
        for study in studies.STUDIES.values():
            tell(f"{study.name:18} {study.title}")
        return
    outcome = studies.reproduce(
        what,
        watcher=QuietWatcher if quiet else usual_watcher,
        seeds=seeds,
        out=out,
        epochs=epochs,
        only_show=show,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
        executor=_place(on, at_once, out, jobs, address),
    )
    tell(outcome.table)
    if outcome.study.kind != "table" and outcome.runs:
        path = out / f"{outcome.study.name}.png"
        figures.save(studies.figure(outcome.study, out, epochs=epochs), path)
        tell(f"figure: {path}")
    if not outcome.finished and not show:
        tell("stopped and saved; the same command goes on")
        sys.exit(max((run.exit_code for run in outcome.runs), default=0) or INTERRUPTED)


def _place(
    on: str, at_once: int | None, out: Path, jobs: list[str] | None, address: str | None
) -> Any:
    """Where to train; None: here, as the study sees fit."""
    from binep.training.trials import place

    if on == "here" and at_once is None:
        return None
    return place(on, at_once=at_once, folder=out, slurm=job_parameters(jobs), address=address)


def _reproduce_from(source: Path, what: str | None, check: bool) -> None:
    from binep.files import make_folder
    from binep.report import figures
    from binep.studies import reproduce as studies
    from binep.studies.detail_pages import DPI, FIGURES, outdated, write_pages
    from binep.studies.evidence import open_evidence

    evidence = open_evidence(source)
    if check:
        if wrong := outdated(evidence):
            tell(f"not what {source} says: {', '.join(wrong)}; run: binep reproduce --from")
            sys.exit(1)
        tell(f"all pages say what {source} does")
        return
    if what is None:
        for path in write_pages(evidence):
            tell(f"{path}: written")
        return
    tell(studies.render(what, evidence))
    if studies.find_study(what).kind != "table":
        path = source.parent / FIGURES / f"{what}.png"
        make_folder(path.parent)
        figures.save(studies.figure(what, evidence), path, dpi=DPI)
        tell(f"figure: {path}")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE...]", help="None: the paper's seven networks."),
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    batches: Annotated[int, typer.Option(help="Number of mini-batches to time.")] = 20,
    reference_batches: Annotated[int, typer.Option(help="The same for the reference engine.")] = 2,
    train: Annotated[int, typer.Option(help="Number of mini-batches to train first.")] = 0,
    data_dir: DataDir = None,
    own_data: OwnData = None,
    overrides: Overrides = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Time against width, depth, batch and T instead.")
    ] = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Also write .md, .json or (--sweep) .png; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
        "say": say,
    }
    changed = with_data(overrides, own_data)
    if sweep and changed:
        raise BinepError("--data and --set with --sweep: allowed is one or the other")
    if sweep:
        found = benches.sweep(names or benches.SWEEP, **common)
    else:
        chosen, once = names or benches.PAPER, reference_batches
        found = benches.bench(chosen, reference_batches=once, overrides=changed, **common)
    for path in files:
        benches.write(found, path)
    if as_json:
        tell(found.to_json())
    else:
        tell(f"{found.notes}\n\n{text_table(*found.table, left=2)}")


def results(
    folders: RunFolders,
    to: Annotated[Path, typer.Option(help="Folder that the files go into.")] = Path("evidence"),
) -> None:
    """Write each run as one small file, for a repository to keep: record, recipe, metrics.

    DIR/runs/<hash of the recipe>/seed<k>.json, and a line in DIR/index.csv. A file that is there
    may grow by later epochs of the same run; nothing else replaces it.

    Example: binep results runs --to evidence
    """
    from binep.report import open_runs
    from binep.studies.evidence import Evidence, write_index, write_result

    for run in sorted(open_runs(folders), key=lambda run: len(run.metrics)):
        tell(
            f"{write_result(run, to)}: {len(run.metrics)} of {run.recipe.training.epochs} epochs, "
            f"{run.record.get('status')}"
        )
    tell(f"{write_index(Evidence(to))}: the index")


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
    epochs: Annotated[int, typer.Option(help="Number of epochs of each variant.")] = 5,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each variant.")] = 1,
    trained: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", help="A run of one of them, not to be trained again; may be repeated."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A file to write, and to continue if it exists.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    own_data: OwnData = None,
    overrides: Overrides = None,
    on: On = "here",
    at_once: AtOnce = None,
    jobs: JobParameters = None,
    address: RayAddress = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to leave the runs in: those that were cut off go on."),
    ] = None,
    quiet: Quiet = False,
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
        choices.make_variants(recipe, variants, common=with_data(overrides, own_data)),
        epochs=epochs,
        seeds=seeds,
        trained=[runs.open_run(folder) for folder in trained or ()],
        to=to,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
        say=say,
        executor=_place(on, at_once, out or Path("runs/choose"), jobs, address),
        out=out if on == "here" else out or Path("runs/choose"),
    )
    tell(choices.render(choice))


def tune(
    recipe: RecipeName,
    to: Annotated[
        Path | None, typer.Option(help="A TOML file to write the recipe found to.")
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(
            help=f"Mini-batches of a probe [{PROBE}], or without flips for --activity [10]."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of epochs of each candidate.")] = 3,
    activity: Annotated[
        str | None,
        typer.Option(
            metavar="SHARES",
            help="Find gains, biases and taus instead, so that each layer's neurons are on for "
            "this share of images: one number, or one per layer, as in 0.1,0.2.",
        ),
    ] = None,
    spread: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="With --activity: standard deviation over images of what comes from below. "
            "By default the recipe's gains stay.",
        ),
    ] = None,
    quantile: Annotated[
        float, typer.Option(help="With --activity: of |m| after those mini-batches, for tau.")
    ] = 0.999,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    trials: Annotated[
        int | None,
        typer.Option(help="Number of trials to search with Optuna, starting from the rule."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where the search is kept: a file (the default), or a database."
        ),
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    own_data: OwnData = None,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Find gamma and tau of every coupling by the paper's rule: watch pi, how many weights flip.

    Example: binep tune mnist-1fc-wa --set optimizer.tau=1e-5 --to mine.toml

    With --activity: how active layers of binary neurons are before training.
    """
    from binep.files import check_file
    from binep.studies import tune as tuning
    from binep.studies import waking
    from binep.studies.workbench import Workbench
    from binep.training import recipe as recipes

    if to is not None:
        check_file(to)
    if storage is not None and trials is None:
        raise BinepError("--storage without --trials: allowed is both, for a search")
    if spread is not None and activity is None:
        raise BinepError("--spread without --activity: allowed is both, for a start that is alive")
    chosen = recipes.load(recipe, with_data(overrides, own_data))
    bench = Workbench.of(
        chosen,
        seed=seed,
        device=device,
        engine=engine,
        data_dir=data_dir,
        offline=offline,
        say=say,
    )
    if activity is not None:
        woken = waking.wake(
            bench,
            _numbers("--activity", activity),
            spread=None if spread is None else _numbers("--spread", spread),
            batches=waking.BATCHES if batches is None else batches,
            quantile=quantile,
        )
        tell(waking.render(woken))
        _write_found(woken.recipe, to)
        return
    options: dict[str, Any] = {
        "batches": PROBE if batches is None else batches,
        "epochs": epochs,
        "watch": lambda trial: say(tuning.line(trial)),
    }
    if trials is None:
        found = tuning.tune(bench, **options)
    else:
        from binep.studies.search import search

        kept = storage or Path("runs/search") / f"{chosen.name}.journal"
        found = search(bench, trials=trials, storage=kept, **options)
    tell(tuning.render(found))
    _write_found(found.recipe, to)


def _write_found(recipe: Any, to: Path | None) -> None:
    from binep.studies import tune as tuning

    if to is not None:
        tuning.write_recipe(recipe, to)
        tell(f"{to}: train it with binep train {to}")


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BinepError(f"{option} {text}: allowed are numbers, as in 0.1,0.2") from None
