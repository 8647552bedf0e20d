"""Choices: variants of a recipe compared on validation images, and kept with their evidence.

The validation images are the last of the training set. They are kept out of training, and the test
set is not looked at: what is chosen here may be measured there.

evidence/choices/<question>.json     every variant's complete recipe, and its epochs, seed by seed
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from binep.data import Folder
from binep.engines.select import select_device
from binep.errors import BinepError
from binep.files import make_folder
from binep.report import changes, figures, settings
from binep.report.figures import DASH, Spread, duration
from binep.studies.evidence import read_json, recipe_hash, rounded, without_none, write_json
from binep.training import recipe as recipes
from binep.training.progress import Watcher
from binep.training.recipe import Recipe
from binep.training.run_folder import Run
from binep.training.trials import Executor, Options, Trial, place

FORMAT = "binep choice 1"
VALIDATION = 5000  # images, where the training set is large enough
SIDE_BY_SIDE = 6  # trainings on a GPU
# What a trial takes over of a run's record, see `provenance.whereabouts`.
WHERE = (
    *("binep", "commit", "python", "torch", "numpy", "platform", "device", "device_name"),
    *("threads", "kernel_threads", "engine", "precision"),
)

Say = Callable[[str], None]


def held_out(recipe: Recipe) -> Recipe:
    """The same recipe, trained without the last training images and tested on those.

    >>> held_out(recipes.load("mnist-1fc-w")).data.validation
    5000
    """
    count = min(VALIDATION, recipe.source.train_count // 5)
    return replace(recipe, data=replace(recipe.data, validation=count))


@dataclass(frozen=True)
class Variant:
    """A recipe that is compared with others; `trials` is one run a seed.

    Attributes:
        label: what is changed in it.
        trials: `seed`, `validation_error`, `train_error` and `pi` (all of them one an epoch),
            `seconds`, and where it was trained.
    """

    label: str
    recipe: Recipe
    trials: list[dict[str, Any]]

    def of(self, epochs: int) -> list[dict[str, Any]]:
        """The trials of at least so many epochs."""
        return [trial for trial in self.trials if len(trial["validation_error"]) >= epochs]

    def add(self, trial: dict[str, Any]) -> None:
        """Keep a trial; of those with the same seed the longest."""
        known = {each["seed"]: each for each in self.trials}
        earlier = known.setdefault(trial["seed"], trial)
        if len(trial["validation_error"]) > len(earlier["validation_error"]):
            known[trial["seed"]] = trial
        self.trials[:] = sorted(known.values(), key=lambda each: each["seed"])

    def error(self, epoch: int) -> Spread | None:
        """Validation error after an epoch, over the seeds that have come so far."""
        reached = [trial["validation_error"][epoch - 1] for trial in self.of(epoch)]
        return Spread.of(reached) if reached else None


@dataclass(frozen=True)
class Choice:
    """A question, and what its variants did on the validation images after so many epochs."""

    question: str
    epochs: int
    variants: list[Variant]

    @property
    def best(self) -> Variant | None:
        """The variant with the lowest mean error after the last epoch."""
        measured = [(v.error(self.epochs), v) for v in self.variants]
        ranked = [(error.mean, n, v) for n, (error, v) in enumerate(measured) if error]
        return min(ranked)[2] if ranked else None


def make_variants(
    recipe: str, changed: Sequence[str], *, base: bool = True, common: Sequence[str] = ()
) -> list[Variant]:
    """Variants of a recipe, each with some keys changed.

    Args:
        changed: for each variant `section.key=value`, several of them with `;` between; the label
            of a variant is this text.
        base: compare with the recipe as it is, too.
        common: what is changed in all of them, as it is included.
    """
    variants = [Variant("as it is", held_out(recipes.load(recipe, common)), [])] if base else []
    for text in changed:
        overrides = [part.strip() for part in text.split(";") if part.strip()]
        if any(part.startswith("data.validation") for part in overrides):
            raise BinepError(
                f"{text}: data.validation is the same for all variants, allowed are other keys"
            )
        changed_recipe = recipes.load(recipe, [*common, *overrides])
        variants.append(Variant(text.strip(), held_out(changed_recipe), []))
    return variants


def compare(
    question: str,
    variants: Sequence[Variant],
    *,
    epochs: int,
    seeds: int = 1,
    trained: Sequence[Run] = (),
    to: Path | None = None,
    device: str = "auto",
    engine: str = "auto",
    data_dir: Folder | None = None,
    offline: bool = False,
    say: Say = lambda text: None,
    executor: Executor | None = None,
    out: Path | None = None,
) -> Choice:
    """Train every variant with every seed, and read the validation images after each epoch.

    Args:
        seeds: how many: 0 to seeds - 1, all variants with one before the next.
        trained: runs of variants, which are not trained again: of those that differ in their last
            epochs only, the first can be trained once and branched off.
        to: a file that is written after each run; what it already holds is not trained again, and
            variants that were not asked for are kept.
        executor: where to train; by default here, on a GPU some beside each other.
        out: folder that the runs are left in, so that those cut off go on; by default none.
    """
    if seeds < 1 or epochs < 1:
        raise BinepError(f"epochs={epochs}, seeds={seeds}: allowed is at least 1 of each")
    for one, other in combinations(variants, 2):
        if _alike(one, other):
            raise BinepError(f"two variants train the same: {one.label!r} and {other.label!r}")
    earlier = read_choice(to).variants if to is not None and to.is_file() else []
    asked = [_with_earlier(variant, earlier) for variant in variants]
    for run in trained:
        _take_over(run, asked, epochs)
    others = [old for old in earlier if not any(_alike(old, variant) for variant in asked)]
    choice = Choice(question, epochs, [*asked, *others])
    if to is not None and trained:
        write_choice(choice, to)
    missing = [
        (variant, seed)
        for seed in range(seeds)
        for variant in asked
        if not any(trial["seed"] == seed for trial in variant.of(epochs))
    ]
    options = Options(device, engine, data_dir, offline)
    if executor is None:
        beside = SIDE_BY_SIDE if select_device(device).type == "cuda" else 1
        executor = place("here", at_once=beside, watcher=lambda trial: _Saying(say))
    for variant, trial in _train_all(missing, epochs, options, executor, out):
        variant.add(trial)
        say(
            f"{variant.label}, seed {trial['seed']}: {trial['validation_error'][-1]:.2f} % after "
            f"{epochs} epochs, {duration(sum(trial['seconds']))}"
        )
        if to is not None:
            write_choice(choice, to)
    return choice


def _with_earlier(variant: Variant, earlier: Sequence[Variant]) -> Variant:
    """The variant with the trials that earlier calls have trained."""
    found = replace(variant, trials=list(variant.trials))
    for old in earlier:
        if _alike(old, variant):
            for trial in old.trials:
                found.add(trial)
    return found


def _take_over(run: Run, variants: Sequence[Variant], epochs: int) -> None:
    """Make a run on disk a trial of its variant, or say why it cannot be one."""
    if len(run.metrics) < epochs:
        raise BinepError(
            f"{run.folder} has {len(run.metrics)} epochs: allowed are at least {epochs}"
        )
    found = Variant(run.folder.name, run.recipe, [])
    variant = next((each for each in variants if _alike(each, found)), None)
    if variant is None:
        raise BinepError(
            f"{run.folder} is of none of the variants: allowed are runs of them, trained with "
            f"data.validation={variants[0].recipe.data.validation}"
        )
    where = {key: run.record[key] for key in WHERE if key in run.record}
    variant.add(_trial(run.record["seed"], run.metrics[:epochs], where))


def _alike(one: Variant, other: Variant) -> bool:
    """Whether two recipes train the same, whatever their number of epochs."""
    first, second = settings(one.recipe), settings(other.recipe)
    return all(second[key] == value for key, value in first.items() if key != "training.epochs")


def _train_all(
    missing: Sequence[tuple[Variant, int]],
    epochs: int,
    options: Options,
    executor: Executor,
    out: Path | None,
) -> Iterator[tuple[Variant, dict[str, Any]]]:
    """Train variants, each with a seed, where the executor trains."""
    with _folder(out) as folder:
        trials = {
            (n, seed): Trial(_to_train(variant, epochs), seed, folder, None, options)
            for n, (variant, seed) in enumerate(missing)
        }
        variants = {trial.label: missing[n][0] for (n, _), trial in trials.items()}
        for outcome in executor.run(list(trials.values())):
            if outcome.failure is not None:
                raise BinepError(f"{outcome.trial.label}: {outcome.failure}")
            if not outcome.finished or outcome.run is None:
                raise KeyboardInterrupt
            lines = outcome.run.metrics[:epochs]
            where = {key: outcome.run.record[key] for key in WHERE if key in outcome.run.record}
            yield variants[outcome.trial.label], _trial(outcome.trial.seed, lines, where)


def _to_train(variant: Variant, epochs: int) -> Recipe:
    """The variant's recipe for so many epochs, called after what it trains."""
    recipe = variant.recipe
    changed = replace(recipe, training=replace(recipe.training, epochs=epochs))
    return replace(changed, name=f"{recipe.name[:100]}+{recipe_hash(recipe)}")


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """A folder of runs, which is removed if none was given."""
    if given is not None:
        make_folder(given)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="binep-choose-") as name:
        yield Path(name)


class _Saying(Watcher):
    """Passes on only what a person should know."""

    def __init__(self, say: Say) -> None:
        self.tell = say

    def say(self, text: str) -> None:
        self.tell(text)


def _trial(seed: int, lines: list[dict[str, Any]], where: dict[str, Any]) -> dict[str, Any]:
    """The trial of a training: its metrics in short, and where it was made."""
    return {
        "seed": seed,
        "validation_error": [line["test_error"]["average"] for line in lines],
        "train_error": [line["train_error"]["average"] for line in lines],
        "pi": [line["pi"] for line in lines],
        "seconds": [line["seconds"] + line["test_seconds"] for line in lines],
        **where,
    }


# --- showing ------------------------------------------------------------------------------------


def table(choice: Choice) -> tuple[list[str], list[list[str]]]:
    """Header and rows: validation errors of each variant after some of the epochs."""
    shown = [n for n in (1, 2, 5, 10, 20, 50) if n < choice.epochs] + [choice.epochs]
    header = ["variant", *(f"epoch {n}" for n in shown), "n", "time a run", ""]
    rows = []
    for variant in choice.variants:
        errors = [variant.error(n) for n in shown]
        times = [sum(trial["seconds"][: choice.epochs]) for trial in variant.of(choice.epochs)]
        rows.append(
            [
                variant.label,
                *(str(error or DASH) for error in errors),
                str(errors[-1].n) if errors[-1] else DASH,
                duration(sum(times) / len(times)) if times else DASH,
                "lowest" if variant is choice.best else "",
            ]
        )
    return header, rows


def render(choice: Choice) -> str:
    """A choice as a plain table."""
    header, rows = table(choice)
    note = (
        f"Errors in % of the last {choice.variants[0].recipe.data.validation} training images, "
        "which were kept out of training: mean ± sample standard deviation over n seeds."
    )
    return "\n".join([choice.question, "", figures.text_table(header, rows), "", note])


# --- keeping ------------------------------------------------------------------------------------


def write_choice(choice: Choice, path: Path) -> None:
    """Write a choice, one line a trial."""
    make_folder(path.parent)
    variants = []
    for variant in choice.variants:
        recipe = json.dumps(without_none(asdict(variant.recipe)))
        trials = ",\n".join(json.dumps(rounded(trial)) for trial in variant.trials)
        variants.append(
            f'{{"label": {json.dumps(variant.label)},\n"recipe": {recipe},\n'
            f'"trials": [\n{trials}\n]}}'
        )
    head = {"format": FORMAT, "question": choice.question, "epochs": choice.epochs}
    write_json(path, head, "variants", variants)


def read_choice(path: Path) -> Choice:
    """Read a file of `write_choice`."""
    found = read_json(path, FORMAT)
    try:
        variants = [
            Variant(v["label"], recipes.from_table(v["recipe"]), list(v["trials"]))
            for v in found["variants"]
        ]
        choice = Choice(found["question"], found["epochs"], variants)
        table(choice)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BinepError(f"{path}: not what binep choose writes ({error!r})") from None
    if not all(variant.recipe.data.validation for variant in variants):
        raise BinepError(f"{path}: a variant was tested on test images: allowed are validation's")
    return choice


def standing(choice: Choice) -> str:
    """How the recipe that ships now relates to a choice made earlier."""
    shipping = [v for v in choice.variants if v.recipe.name in recipes.names()]
    changed = [changes(v.recipe, held_out(recipes.load(v.recipe.name))) for v in shipping]
    like = [v.label for v, keys in zip(shipping, changed, strict=True) if not keys]
    if like:
        return f"The recipe that ships trains as in: {', '.join(like)}."
    every = changed[0] if shipping == choice.variants else []
    common = [key for key in every if all(key in keys for keys in changed)]
    having = f": all of them have {', '.join(common)}" if common else ""
    return f"None of these is exactly the recipe as it ships{having}."
