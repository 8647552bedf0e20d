"""The page: tables, figures and records as one HTML file that needs nothing from outside.

Here is what it says; how that is marked up stands in `templates`.
"""

import base64
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from binep.core.network import READOUTS
from binep.report import figures
from binep.report.figures import DASH, Spread, duration, number
from binep.report.groups import Group, seconds_until
from binep.report.reading import Reading
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.trainer import diagnose

if TYPE_CHECKING:
    from jinja2 import Environment

# Names of classes that are not digits.
CLASSES = {
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
    "fashion-mnist": "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, boot",
}


Facts = dict[str, Any]  # what a template is filled with


def make_page(groups: Sequence[Group], readings: Sequence[Reading | str]) -> str:
    """All groups compared, then each on its own; a text in place of a reading says why none."""
    single = any(group.recipe.network.per_class > 1 for group in groups)
    page = _templates().get_template("page.html")
    return page.render(
        title=f"binep: {', '.join(group.label for group in groups)}",
        headline=_unbroken(headline(groups)),
        comparison=_comparison(groups, single),
        overlay=_overlay(groups),
        groups=[
            {"row": _comparison_row(group, single), **_group(n, group, reading)}
            for n, (group, reading) in enumerate(zip(groups, readings, strict=True))
        ],
    )


@functools.cache
def _templates() -> "Environment":
    """Templates that escape what they are filled with, and stop at a name that is not there."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("binep.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def headline(groups: Sequence[Group]) -> str:
    """The result in one sentence."""
    if len(groups) == 1:
        (group,) = groups
        error, epochs = group.error("test"), group.recipe.training.epochs
        if error is None:
            return f"{group.label}: no epoch of {epochs} is finished yet."
        stage = f"after {group.epoch} epochs"
        if not group.finished:
            stage = f"so far, after {group.epoch} of {epochs} epochs"
        return f"{group.label}: {error} % {group.tested_on} error {stage} ({_over(error)})."
    results = [
        f"{figures.shortened(group.label)} {error} % (n = {error.n})"
        for group in groups
        if (error := group.error("test")) is not None
    ]
    if not results:
        return f"{len(groups)} recipes, none of which has finished an epoch yet."
    if len(results) > 4:
        return _range(groups)
    what = "Test error" if all(group.tested_on == "test" for group in groups) else "Error"
    return f"{what}: {'; '.join(results)}."


def _range(groups: Sequence[Group]) -> str:
    """The lowest and the highest error on each data set, of many recipes."""
    found = {}
    for group in groups:
        if (error := group.error("test")) is not None:
            found.setdefault((group.recipe.data.name, group.tested_on), []).append((error, group))
    told = []
    for (data, tested_on), results in found.items():
        low, high = (pick(results, key=lambda each: each[0].mean) for pick in (min, max))
        what = f"{data}, {tested_on} error"
        least = f"{low[0]} % ({figures.shortened(low[1].label)}, n = {low[0].n})"
        most = f" to {high[0]} % ({figures.shortened(high[1].label)}, n = {high[0].n})"
        told.append(f"{what}: {least}{most if len(results) > 1 else ''}")
    several = sum(len(group.runs) for group in groups)
    return f"{len(groups)} recipes in {several} runs. {'; '.join(told)}."


def _unbroken(text: str) -> str:
    """Text in which a number stays on one line with its sign and its unit."""
    for mark in (" %", " ± ", "n = "):
        text = text.replace(mark, mark.replace(" ", "\N{NO-BREAK SPACE}"))
    return text


def _over(spread: Spread) -> str:
    if spread.sd is None:
        return "n = 1 seed"
    return f"mean ± standard deviation, n = {spread.n} seeds"


def _overlay(groups: Sequence[Group]) -> Facts | None:
    """All runs in one chart, if there are several."""
    shown = {group.label: [run.metrics for run in group.runs if run.metrics] for group in groups}
    shown = {label: histories for label, histories in shown.items() if histories}
    if sum(map(len, shown.values())) < 2:
        return None
    validation = [group.label for group in groups if group.tested_on != "test"]
    told = f" Of {', '.join(validation)}: on validation images." if validation else ""
    caption = (
        "Test error of every run, finished or not, after each epoch; runs of a recipe share colour "
        f"and line.{told} The first epoch may lie above the chart."
    )
    return _figure("overlay", "All runs", figures.overlay(shown), caption)


def _comparison(groups: Sequence[Group], single: bool) -> Facts:
    header = ["Recipe", "Test error, %", "Training error, %"]
    header += ["Test error, single neuron, %"] if single else []
    header += ["Paper: test, %", "Paper: training, %", "n", "Epochs", "Time a run", "Device"]
    notes = [
        "Errors are means over seeds ± one sample standard deviation (none where n = 1), at "
        "the epoch shown. Training error is that of the free phase before each update, averaged "
        "over the epoch; test error is measured after the epoch. Time is wall time of training "
        "and testing, mean over runs. The paper's are means ± standard deviation over 5 trials."
    ]
    if any(group.changed and group.recipe.paper.test is not None for group in groups):
        notes.append("† The recipe was changed: the paper's number is for the one unchanged.")
    if any(group.tested_on != "test" for group in groups):
        notes.append("‡ On validation images, kept out of training, not on the test set.")
    held = [group.recipe.name for group in groups if group.recipe.learning.margin]
    if held:
        notes.append(
            f"{', '.join(held)}: training error counts what does not win by learning.margin, "
            "which holds the right class back in training and nowhere else."
        )
    return {"header": header, "notes": notes}


def _comparison_row(group: Group, single: bool) -> list[str]:
    recipe, paper = group.recipe, group.recipe.paper
    test, train = group.error("test"), group.error("train")
    cells = [f"{test or DASH}{'' if group.tested_on == 'test' else ' ‡'}", str(train or DASH)]
    if single:
        shown = group.error("test", "single") if recipe.network.per_class > 1 else None
        cells.append(str(shown or DASH))
    mark = " †" if group.changed and paper.test is not None else ""
    cells += [number(paper.test, paper.test_sd) + mark, number(paper.train)]
    epochs, planned = group.epoch, recipe.training.epochs
    times = [seconds_until(run, epochs) for run in group.counted]
    cells += [
        str(len(group.counted)),
        str(epochs) if group.finished else f"{epochs} of {planned}, unfinished",
        duration(sum(times) / len(times)) if times else DASH,
        ", ".join(sorted({str(run.record.get("device", DASH)) for run in group.counted})) or DASH,
    ]
    return cells


def _group(index: int, group: Group, reading: Reading | str) -> Facts:
    warnings, drawn = _warnings(group), _curves(group) if group.epoch else []
    if isinstance(reading, str):
        warnings.append(
            "Left out, since they need the trained network and its test images: residuals against "
            f"time, resting places, misread images, confusion matrix ({reading})."
        )
    else:
        drawn += _network_figures(group, reading)
    return {
        "key": f"group-{index}",
        "label": group.label,
        "summary": group.summary,
        "warnings": warnings,
        "figures": [
            _figure(f"g{index}-{n}", title, drawing, caption)
            for n, (title, drawing, caption) in enumerate(drawn)
        ],
        "rates": _constant_rates(group.recipe),
        "weights": None if isinstance(reading, str) else _weights(reading),
        "misread": None if isinstance(reading, str) else _misread(group, reading),
        "confusion": None if isinstance(reading, str) else _confusion(group, reading),
        "recipe": recipes.dumps(group.recipe),
        "records": _records(group),
    }


def _warnings(group: Group) -> list[str]:
    found = [
        f"Unfinished: {run.folder.name}, {len(run.metrics)} of {run.recipe.training.epochs} epochs"
        + (", not counted." if run not in group.counted else ".")
        for run in group.unfinished
    ]
    found += [
        f"Not counted: {run.folder}, its seed {run.record.get('seed')} is already there."
        for run in group.repeated
    ]
    if group.changed:
        found.append(
            f"Changed from the recipe {group.recipe.name} as it ships: {', '.join(group.changed)}."
        )
    for run in group.counted:
        said = diagnose(run.metrics, run.recipe.network.sends_bits).values()
        found += [f"{run.folder.name}: {advice}." for advice in said]
    return found


Drawing = tuple[str, Any, str]


def _curves(group: Group) -> list[Drawing]:
    """Figures made of metrics alone: title, figure, what one sees."""
    recipe, histories = group.recipe, group.histories
    n = len(group.counted)
    over = f"Line: mean over n = {n} seeds; band: ± one standard deviation." if n > 1 else "n = 1."
    enlarged = recipe.network.per_class > 1
    both = (
        " Solid: a class is read from the average of its neurons; dashed: from its first neuron."
        if enlarged
        else ""
    )
    found = [
        (
            "Errors",
            figures.error_curves(
                histories,
                readouts=READOUTS if enlarged else READOUTS[:1],
                paper=recipe.paper.test,
                tested_on=group.tested_on,
            ),
            "Training error: free phase before each update, averaged over the epoch. "
            f"{group.tested_on.capitalize()} error: after the epoch.{both} {over}",
        )
    ]
    names = figures.coupling_names(recipe)
    found.append(
        (
            "Loss",
            figures.loss_curves(histories, group.tested_on),
            f"Training: averaged over the epoch; {group.tested_on}: after it. {over}",
        )
    )
    changing = {rate: due for rate, due in _rates(recipe).items() if _changes(due)}
    if changing:
        found.append(
            (
                "Rates",
                figures.rate_curves(changing, names),
                "What the optimizers use in each epoch, for each coupling from input to output: "
                "the rates that change.",
            )
        )
    if histories[0][0]["pi"]:
        found.append(
            (
                "Flipped weights",
                figures.coupling_curves(histories, "pi", names, "π"),
                "π = ln(weights flipped in the epoch / weights + e⁻⁹), for each "
                "coupling from input to output: 0 means as many flips as weights, "
                f"{figures.MINUS}9 none. {over}",
            )
        )
    if recipe.network.learn_scale:
        found.append(
            (
                "Learnt scaling factors",
                figures.alpha_curves(histories, names),
                "The learnt scaling factor of each coupling after the epoch; of a convolution the "
                "mean over its channels, thin lines the smallest and the largest of any seed. "
                f"{over}",
            )
        )
    found.append(
        (
            "Convergence in training",
            figures.residual_curves(histories),
            "Largest change of any neuron in the last step of the free phase, averaged over the "
            "epoch's mini-batches. "
            + (f"Thick line: mean over n = {n} seeds; thin lines: each seed." if n > 1 else over),
        )
    )
    if enlarged:
        found.append(
            (
                "Difference of the two readouts",
                figures.readout_difference(histories, group.tested_on),
                "Error read from one neuron a class minus the error read from the class's average, "
                f"in percentage points: above zero the average reads better. {over}",
            )
        )
    return found


def _rates(recipe: Recipe) -> dict[str, list[list[float]]]:
    """Each rate in every epoch, one value a coupling."""
    due = [recipe.rates(epoch) for epoch in range(recipe.training.epochs)]
    return {rate: [rates[rate] for rates in due] for rate in due[0]}


def _changes(due: list[list[float]]) -> bool:
    return any(values != due[0] for values in due)


def _constant_rates(recipe: Recipe) -> str:
    """The rates that stay as they are, in words."""
    same = {rate: due[0] for rate, due in _rates(recipe).items() if not _changes(due)}
    told = [
        f"{rate} {', '.join(f'{value:g}' for value in dict.fromkeys(values))}"
        for rate, values in same.items()
    ]
    return f"Rates that stay the same, from input to output: {'; '.join(told)}." if told else ""


def _weights(reading: Reading) -> Facts:
    pictures = [
        {
            "title": picture.title,
            "png": base64.b64encode(
                figures.png(picture.pixels.repeat(picture.zoom[0], 0).repeat(picture.zoom[1], 1))
            ).decode(),
        }
        for picture in reading.weights
    ]
    caption = (
        "Blue: negative, orange: positive. A matrix has a row for each neuron or channel above and "
        f"a column for each weight; where it is large, a pixel is the mean of neighbours. Network "
        f"of seed {reading.seed}."
    )
    return {"pictures": pictures, "caption": caption}


def _network_figures(group: Group, reading: Reading) -> list[Drawing]:
    """Figures of the trained network: title, figure, what one sees."""
    keys = group.recipe.learning
    nudge = (
        f", then {keys.nudged_steps} steps nudged with β = {keys.beta:g} ({keys.nudge} nudge)"
        if reading.nudged
        else "; this run learns by BPTT and has no nudged phase"
    )
    still = sum(value == 0 for value in (*reading.free, *reading.nudged))
    gap = f" In {still} steps nothing moved: no point." if still else ""
    bits = "active" in reading.resting
    place = (
        "Share of neurons whose bit is 1 (active) at the end of the free phase"
        if bits
        else "Share of neurons at their lowest activity (0), between, and at their highest (1) at "
        "the end of the free phase; those at either end are saturated"
    )
    return [
        (
            "Relaxation of the trained network",
            figures.residual_trace(reading.free, reading.nudged, keys.tolerance),
            f"Largest change of any neuron in each time step, on {reading.traced} "
            f"{group.tested_on} images: {keys.free_steps} free steps{nudge}. "
            f"Network of seed {reading.seed}.{gap}",
        ),
        (
            "Active neurons" if bits else "Saturated neurons",
            figures.resting_places(reading.layers, reading.resting),
            f"{place}, over {_images(group, reading)}. Network of seed {reading.seed}.",
        ),
    ]


def _images(group: Group, reading: Reading) -> str:
    if reading.samples == reading.available:
        return f"all {reading.samples:,} {group.tested_on} images"
    return f"{reading.samples:,} of {reading.available:,} {group.tested_on} images"


def _figure(key: str, title: str, drawing: Any, caption: str) -> Facts:
    from markupsafe import Markup

    svg = figures.svg(drawing, key, title)
    return {"title": title, "svg": Markup(svg), "caption": caption}


def _class_name(group: Group, label: int) -> str:
    if group.recipe.data.class_names:
        return group.recipe.data.class_names[label]
    names = CLASSES.get(group.recipe.data.name)
    return names.split(", ")[label] if names else str(label)


def _misread(group: Group, reading: Reading) -> Facts:
    readouts = ("average", "single") if group.recipe.network.per_class > 1 else ("average",)
    counts = ", ".join(
        f"{reading.wrong[r]} ({100 * reading.wrong[r] / reading.samples:.2f} %)"
        + (f" by the {figures.READOUT_NAMES[r]}" if len(readouts) > 1 else "")
        for r in readouts
    )
    caption = (
        f"Misread by the network of seed {reading.seed}: {counts} of {_images(group, reading)}. "
        f"Shown are {len(reading.examples)}, evenly spread over the set, with true class → "
        "class read (average readout)."
        if reading.examples
        else f"The network of seed {reading.seed} reads {_images(group, reading)} right."
    )
    # Vectors are no pictures.
    pictures = [example for example in reading.examples if example[0].dim() == 3]
    images = [_misread_image(group, *example) for example in pictures]
    return {"images": images, "caption": caption}


def _misread_image(group: Group, image: Tensor, true: int, read: int) -> Facts:
    if image.is_floating_point():
        span = (image.max() - image.min()).clamp(min=1e-12)
        image = (255 * (image - image.min()) / span).byte()
    encoded = base64.b64encode(figures.png(image[:3].permute(1, 2, 0).numpy())).decode()
    return {"true": _class_name(group, true), "read": _class_name(group, read), "png": encoded}


def _confusion(group: Group, reading: Reading) -> Facts:
    names = [_class_name(group, n) for n in range(len(reading.confusion))]
    most = max(
        (count for t, row in enumerate(reading.confusion) for p, count in enumerate(row) if t != p),
        default=0,
    )
    caption = (
        f"How often each true class (row) is read as each class (column), average readout, over "
        f"{_images(group, reading)}; the stronger the colour, the more frequent the mistake. "
        f"Network of seed {reading.seed}."
    )
    rows = [
        {
            "name": names[true],
            "cells": [
                {
                    "right": true == read,
                    "count": count,
                    "heat": f"{0.08 + 0.62 * count / (most or 1):.2f}",
                }
                for read, count in enumerate(row)
            ],
            "all": sum(row),
        }
        for true, row in enumerate(reading.confusion)
    ]
    return {"names": names, "rows": rows, "caption": caption}


def _records(group: Group) -> Facts:
    """The record of each run, side by side."""
    everyone = [*group.runs, *group.repeated]
    keys = list(dict.fromkeys(key for run in everyone for key in run.record))
    progress = [
        f"{len(run.metrics)} of {run.recipe.training.epochs}"
        + ("" if run.finished else ", unfinished")
        for run in everyone
    ]
    rows = [("epochs", progress)]
    rows += [(key, [_fact(key, run.record.get(key)) for run in everyone]) for key in keys]
    return {"runs": [run.folder.name for run in everyone], "rows": rows}


def _fact(key: str, value: Any) -> str:
    if value is None:
        return DASH
    if key == "seconds" and isinstance(value, int | float):
        return duration(value)
    return value if isinstance(value, str) else json.dumps(value)
