"""The page: tables, figures and records as one HTML file that needs nothing from outside."""

import base64
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from torch import Tensor

from binep.core.network import READOUTS
from binep.report import figures
from binep.report.figures import DASH, Spread, duration, number
from binep.report.groups import Group, seconds_until
from binep.report.reading import Reading
from binep.training import recipe as recipes
from binep.training.trainer import troubles

# Names of classes that are not digits.
CLASSES = {
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
    "fashion-mnist": "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, boot",
}


def make_page(groups: Sequence[Group], readings: Sequence[Reading | str]) -> str:
    """All groups compared, then each on its own; a text in place of a reading says why none."""
    sections = [
        _section(n, group, reading)
        for n, (group, reading) in enumerate(zip(groups, readings, strict=True))
    ]
    title = f"binep: {', '.join(group.label for group in groups)}"
    links = "".join(
        f'<li><a href="#group-{n}">{escape(group.label)}</a></li>' for n, group in enumerate(groups)
    )
    contents = f"<nav><ul>{links}</ul></nav>" if len(groups) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><p class="kicker">binep report</p><h1>{_unbroken(headline(groups))}</h1>'
        f"</header>\n<main>\n{contents}\n{_comparison(groups)}\n"
        + "\n".join(sections)
        + "\n</main>"
        "\n</body>\n</html>\n"
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
        return (
            f"{group.label} reads {error} % of the {group.tested_on} images wrong {stage} "
            f"({_over(error)})."
        )
    results = [
        f"{group.label} {error} % (n = {error.n})"
        for group in groups
        if (error := group.error("test")) is not None
    ]
    if not results:
        return f"{len(groups)} recipes, none of which has finished an epoch yet."
    if len(results) > 4:
        several = sum(len(group.runs) for group in groups)
        return f"{len(groups)} recipes in {several} runs: their errors are in the table below."
    what = "Test error" if all(group.tested_on == "test" for group in groups) else "Error"
    return f"{what}: {'; '.join(results)}."


def _unbroken(text: str) -> str:
    """Escaped text in which a number stays on one line with its sign and its unit."""
    text = escape(text)
    for mark in (" %", " ± ", "n = "):
        text = text.replace(mark, mark.replace(" ", "&nbsp;"))
    return text


def _over(spread: Spread) -> str:
    if spread.sd is None:
        return "n = 1 seed"
    return f"mean ± standard deviation, n = {spread.n} seeds"


def _comparison(groups: Sequence[Group]) -> str:
    single = any(group.recipe.network.per_class > 1 for group in groups)
    header = ["Recipe", "Test error, %", "Training error, %"]
    header += ["Test error, single neuron, %"] if single else []
    header += ["Paper: test, %", "Paper: training, %", "n", "Epochs", "Time a run", "Device"]
    rows = [_comparison_row(n, group, single) for n, group in enumerate(groups)]
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
    return (
        '<section><h2>Results beside the paper</h2><div class="wide"><table>'
        f"<thead><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
        + "</section>"
    )


def _comparison_row(index: int, group: Group, single: bool) -> str:
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
    name = f'<th scope="row"><a href="#group-{index}">{escape(group.label)}</a></th>'
    return f"<tr>{name}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _section(index: int, group: Group, reading: Reading | str) -> str:
    recipe = group.recipe
    parts = [f"<h2>{escape(group.label)}</h2>"]
    if recipe.summary:
        parts.append(f'<p class="summary">{escape(recipe.summary)}</p>')
    parts += [f'<p class="warning">{escape(text)}</p>' for text in _warnings(group)]
    drawn = _curves(group) if group.epoch else []
    if isinstance(reading, str):
        left_out = (
            "Left out, since they need the trained network and its test images: residuals against "
            f"time, resting places, misread images, confusion matrix ({reading})."
        )
        parts.append(f'<p class="warning">{escape(left_out)}</p>')
    else:
        drawn += _network_figures(group, reading)
    blocks = [
        _figure(f"g{index}-{n}", title, drawing, caption)
        for n, (title, drawing, caption) in enumerate(drawn)
    ]
    parts.append(f'<div class="figures">{"".join(blocks)}</div>')
    if isinstance(reading, Reading):
        parts += [_misread(group, reading), _confusion(group, reading)]
    parts += [_recipe(group), _records(group)]
    return f'<section id="group-{index}">{"".join(parts)}</section>'


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
        binary = run.recipe.network.activations == "binary"
        said = troubles(run.metrics, binary).values()
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
    bits = group.recipe.network.activations == "binary"
    place = (
        "Share of neurons whose bit is 1 (active) at the end of the free phase"
        if bits
        else "Share of neurons at 0, between, and at 1 at the end of the free phase; those at 0 "
        "or 1 are saturated"
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


def _figure(key: str, title: str, drawing: Any, caption: str) -> str:
    return (
        f"<figure><h3>{escape(title)}</h3>{figures.svg(drawing, key, title)}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _class_name(group: Group, label: int) -> str:
    names = CLASSES.get(group.recipe.data.name)
    return names.split(", ")[label] if names else str(label)


def _misread(group: Group, reading: Reading) -> str:
    readouts = ("average", "single") if group.recipe.network.per_class > 1 else ("average",)
    counts = ", ".join(
        f"{reading.wrong[r]} ({100 * reading.wrong[r] / reading.samples:.2f} %)"
        + (f" by the {figures.READOUT_NAMES[r]}" if len(readouts) > 1 else "")
        for r in readouts
    )
    shown = "".join(_misread_image(group, *example) for example in reading.examples)
    caption = (
        f"Misread by the network of seed {reading.seed}: {counts} of {_images(group, reading)}. "
        f"Shown are {len(reading.examples)}, evenly spread over the set, with true class → "
        "class read (average readout)."
        if reading.examples
        else f"The network of seed {reading.seed} reads {_images(group, reading)} right."
    )
    return (
        f'<figure class="misread"><h3>Misread images</h3><div class="images">{shown}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _misread_image(group: Group, image: Tensor, true: int, read: int) -> str:
    encoded = base64.b64encode(figures.png(image.permute(1, 2, 0).numpy())).decode()
    names = [escape(_class_name(group, label)) for label in (true, read)]
    return (
        f'<div><img alt="{names[0]}, read as {names[1]}" src="data:image/png;base64,{encoded}">'
        f"<span>{names[0]} → {names[1]}</span></div>"
    )


def _confusion(group: Group, reading: Reading) -> str:
    names = [escape(_class_name(group, n)) for n in range(len(reading.confusion))]
    most = max(
        (count for t, row in enumerate(reading.confusion) for p, count in enumerate(row) if t != p),
        default=0,
    )

    def cell(true: int, read: int, count: int) -> str:
        if true == read:
            return f'<td class="right">{count}</td>'
        if not count:
            return "<td></td>"
        return f'<td style="--heat: {0.08 + 0.62 * count / most:.2f}" class="heat">{count}</td>'

    rows = "".join(
        f'<tr><th scope="row">{names[t]}</th>'
        + "".join(cell(t, p, count) for p, count in enumerate(row))
        + f"<td>{sum(row)}</td></tr>"
        for t, row in enumerate(reading.confusion)
    )
    caption = (
        f"How often each true class (row) is read as each class (column), average readout, over "
        f"{_images(group, reading)}; the stronger the colour, the more frequent the mistake. "
        f"Network of seed {reading.seed}."
    )
    return (
        '<figure><h3>Confusion matrix</h3><div class="wide"><table class="confusion"><thead><tr>'
        "<th>true \\ read</th>"
        + "".join(f"<th>{name}</th>" for name in names)
        + f"<th>all</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _recipe(group: Group) -> str:
    return (
        "<details><summary>Complete recipe</summary>"
        f"<pre>{escape(recipes.dumps(group.recipe))}</pre></details>"
    )


def _records(group: Group) -> str:
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
    head = "".join(f"<th>{escape(run.folder.name)}</th>" for run in everyone)
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(value)}</td>" for value in values)
        + "</tr>"
        for key, values in rows
    )
    return (
        '<details><summary>Record of each run</summary><div class="wide"><table class="record">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _fact(key: str, value: Any) -> str:
    if value is None:
        return DASH
    if key == "seconds" and isinstance(value, int | float):
        return duration(value)
    return value if isinstance(value, str) else json.dumps(value)


STYLE = """
:root { color-scheme: light dark; --ink: #26292e; --soft: #62676f; --paper: #ffffff;
  --card: #f7f7f5; --grid: #d8dade; --accent: #0072b2; --warn: #9a4a00; --heat-rgb: 213 94 0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --soft: #a2a7ae; --paper: #17191c;
  --card: #1f2226; --grid: #3b4046; --accent: #66b8e8; --warn: #f0a35e; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff;
  --card: #fff; --grid: #ccc; --accent: #000; --warn: #000; }
  details::details-content { content-visibility: visible; block-size: auto; }
  body { font-size: 10pt; } section { break-before: auto; } nav { display: none; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
a { color: var(--accent); text-decoration-thickness: 1px; text-underline-offset: 2px; }
.kicker { margin: 0; color: var(--soft); font-size: .8rem; letter-spacing: .08em;
  text-transform: uppercase; }
h1 { margin: .25rem 0 1.5rem; font-size: 1.6rem; line-height: 1.3; font-weight: 650;
  text-wrap: pretty; }
h2 { margin: 2.75rem 0 .5rem; font-size: 1.25rem; line-height: 1.3; }
h3 { margin: 0 0 .4rem; font-size: .95rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; padding: 0;
  list-style: none; }
.summary { margin: 0 0 1rem; color: var(--soft); }
.note { margin: .4rem 0; color: var(--soft); font-size: .85rem; max-width: 48rem; }
.warning { margin: .5rem 0; padding: .1rem 0 .1rem .75rem; border-left: 3px solid var(--warn);
  font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--grid);
  vertical-align: bottom; }
thead th { font-weight: 600; color: var(--soft); border-bottom: 1.5px solid var(--ink); }
th:first-child { text-align: left; padding-left: 0; }
tbody th { font-weight: 500; white-space: nowrap; }
tbody td { white-space: nowrap; }
.figures { display: grid; gap: 1rem; margin: 1.25rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0 0 1rem; padding: 1rem; background: var(--card); border-radius: 6px;
  break-inside: avoid; }
.figures figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: inherit !important; }
figcaption { margin-top: .5rem; color: var(--soft); font-size: .8rem; line-height: 1.45;
  max-width: 48rem; }
.images { display: grid; gap: .75rem .5rem; grid-template-columns: repeat(auto-fill,
  minmax(5rem, 1fr)); }
.images div { text-align: center; font-size: .8rem; line-height: 1.2; }
.images img { display: block; width: 4.2rem; height: 4.2rem; margin: 0 auto .25rem;
  image-rendering: pixelated; }
.confusion th, .confusion td { padding: .25rem .5rem; min-width: 2.4rem; text-align: center;
  border-bottom: none; }
.confusion th:first-child { text-align: right; padding-right: .75rem; }
.confusion td:last-child, .confusion th:last-child { color: var(--soft); }
.confusion .right { font-weight: 600; }
.confusion .heat { background: rgb(var(--heat-rgb) / var(--heat)); print-color-adjust: exact; }
details { margin: .75rem 0; }
summary { cursor: pointer; font-size: .95rem; font-weight: 600; }
pre { padding: 1rem; overflow-x: auto; background: var(--card); border-radius: 6px;
  font: .8rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.record td, .record th { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; vertical-align: top; }
.record th:first-child { min-width: 6rem; }
"""
