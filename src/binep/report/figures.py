"""The common look of figures and tables: colours, axes, bands over seeds, how a number is written.

Figures are plain `matplotlib.figure.Figure` objects, without pyplot and its global state. Curves
come as *histories*: for each run of a group, its lines of metrics, one an epoch.
"""

import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from binep.core.couplings import ConvPool, Dense
from binep.files import write_whole
from binep.training.recipe import Recipe

History = Sequence[dict[str, Any]]
Histories = Sequence[History]

# Okabe and Ito's colours, told apart by colour-blind people too. As in the paper, training is blue
# and testing orange.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW = "#56B4E9", "#E69F00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
TRAIN, TEST = BLUE, ORANGE

# In a page these two follow its colours; see `svg`.
INK, GRID = "#26292e", "#d8dade"

# Signs that look like others, by name.
DASH, MINUS, ALPHA = "\u2013", "\u2212", "\u03b1"

# The paper's readouts, as a legend names them.
READOUT_NAMES = {"average": "average", "single": "single neuron"}
READOUT_LINES = {"average": "-", "single": "--"}

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "savefig.dpi": 160,
}
styled = matplotlib.rc_context(STYLE)


# --- numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over `n` seeds; none with a single one.

    >>> str(Spread.of([2.0, 2.2])), str(Spread.of([2.0]))
    ('2.10 ± 0.14', '2.00')
    """

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            len(values),
        )

    def __str__(self) -> str:
        return number(self.mean, self.sd)


def number(mean: float | None, sd: float | None = None) -> str:
    """A percentage with its standard deviation if there is one, a dash if there is nothing."""
    if mean is None:
        return DASH
    return f"{mean:.2f}" + (f" ± {sd:.2f}" if sd is not None else "")


def shortened(text: str, letters: int = 56) -> str:
    """A text that fits where there is little room.

    >>> shortened("digits-1fc-w", 8)
    'digits-…'
    """
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def duration(seconds: float) -> str:
    """
    >>> duration(7.23), duration(125), duration(7500)
    ('7.2 s', '2 min 5 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A plain table; the first `left` columns are texts, the others numbers.

    >>> print(text_table(["recipe", "test"], [["a", "2.1"], ["bc", "12.0"]]))
    recipe  test
    ------  ----
    a        2.1
    bc      12.0
    """
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(header))]
    table.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """The same in Markdown.

    >>> print(markdown_table(["recipe", "test"], [["a", "2.1"]]))
    | recipe | test |
    |---|--:|
    | a | 2.1 |
    """
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    rule = "|".join("---" if n < left else "--:" for n in range(len(header)))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def coupling_names(recipe: Recipe) -> list[str]:
    """What joins what, from input to output.

    >>> from binep.training.recipe import load
    >>> coupling_names(load("mnist-conv-w"))
    ['1: conv 1–32', '2: conv 32–64', '3: 3136–10']
    """
    with torch.device("meta"):
        couplings = recipe.build_network().couplings
    return [
        f"{n}: {'conv ' if isinstance(c, ConvPool) else ''}{c.below}{DASH}{c.above}"
        for n, c in enumerate(couplings, start=1)
        if isinstance(c, ConvPool | Dense)
    ]


# --- a figure and what it becomes ---------------------------------------------------------------


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 5.4, height: float = 3.2
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of axes, each so many inches large."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def save(figure: Figure, path: Path, *, dpi: float | None = None) -> None:
    """Write a figure as its name says: .svg, .png or .pdf; with fewer dots an inch it is small."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.removeprefix(".") or "png", dpi=dpi)
    write_whole(path, buffer.getvalue())


def svg(figure: Figure, key: str, description: str) -> str:
    """A figure as markup to stand inside a page: its text is text, in the page's own colours.

    Args:
        key: makes the figure's ids different from those of the page's other figures.
        description: what a person hears who does not see it.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    markup = buffer.getvalue()
    markup = markup[markup.index("<svg") :]
    # The figure's own style would be that of the whole page, which has it for figures instead.
    markup = re.sub(r"\s*<(metadata|style).*?</\1>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'\bid="', f'id="{key}-', markup)
    markup = re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", markup)
    markup = markup.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    label = f'<svg role="img" aria-label="{escape(description)}" '
    if panels := hover_values(figure):
        values = json.dumps(panels, separators=(",", ":"), ensure_ascii=False)
        label += f'data-values="{escape(values)}" '
    # Without its own size in points it grows and shrinks with the page.
    return re.sub(
        r"<svg (.*?)>", lambda m: label + _unsized(m[1]) + ">", markup, count=1, flags=re.S
    )


def hover_values(figure: Figure) -> list[dict[str, Any]]:
    """What a page shows under the pointer: of each panel with curves, where it is and its values.

    Of a figure that has been drawn: `box` is the panel's left, lower, right and upper end as shares
    of the figure, `limits` those of its x axis.
    """
    panels = []
    for axes in figure.axes:
        series = [
            {
                "name": str(line.get_label()),
                "colour": to_hex(line.get_color()),
                "x": [_digits(x) for x in np.asarray(line.get_xdata(), float)],
                "y": [_digits(y) for y in np.asarray(line.get_ydata(), float)],
            }
            for line in axes.get_lines()
            # Neither lines across the panel nor those that a legend leaves out.
            if line.get_transform() == axes.transData and not str(line.get_label()).startswith("_")
        ]
        if series:
            box = [round(float(end), 4) for end in axes.get_position().extents]
            limits = [_digits(end) for end in axes.get_xlim()]
            label = axes.get_xlabel() or "x"
            panels.append({"box": box, "limits": limits, "label": label, "series": series})
    return panels


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _unsized(attributes: str) -> str:
    return " ".join(re.sub(r'\b(width|height)="[^"]*"', "", attributes).split())


def png(pixels: np.ndarray) -> bytes:
    """An image (height, width, 1 or 3), uint8, as a PNG file."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.broadcast_to(pixels, (*pixels.shape[:2], 3)), format="png")
    return buffer.getvalue()


# --- curves against epochs ----------------------------------------------------------------------


def series(histories: Histories, pick: Callable[[dict[str, Any]], float]) -> np.ndarray:
    """One number an epoch of every run, (runs, epochs), as far as all of them have come."""
    epochs = min(len(history) for history in histories)
    return np.array([[pick(line) for line in history[:epochs]] for history in histories], float)


def band(axes: Axes, curves: np.ndarray, label: str, colour: str, line: str = "-") -> None:
    """The mean of some curves (runs, epochs) and, with two or more, one standard deviation."""
    epochs = np.arange(1, curves.shape[1] + 1)
    mean = curves.mean(0)
    # One epoch makes no line.
    marker = "o" if len(epochs) == 1 or (len(epochs) <= 20 and line == "-") else ""
    axes.plot(epochs, mean, line, marker=marker, color=colour, label=label)
    if len(curves) > 1:
        sd = curves.std(0, ddof=1)
        axes.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)


def label_epochs(axes: Axes, ylabel: str, title: str = "") -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(ylabel)
    count_along_x(axes)
    if title:
        axes.set_title(title)


def count_along_x(axes: Axes) -> None:
    """Ticks at whole numbers only, also where there is a single one."""
    ticks = MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    axes.xaxis.set_major_locator(ticks)


def legend_above(axes: Axes) -> None:
    """A legend that no curve runs through."""
    _, labels = axes.get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) < 20 else 2
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def scale_wide(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis for positive values that span much, otherwise a linear one from 0."""
    shown = [value for value in values if np.isfinite(value)]
    if shown and 0 < 10 * min(shown) < max(shown):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


@styled
def error_curves(
    histories: Histories,
    *,
    readouts: Sequence[str] = ("average",),
    paper: float | None = None,
    tested_on: str = "test",
) -> Figure:
    """Training and test error against epochs, and the paper's test error if given."""
    figure, ((axes,),) = new_figure()
    draw_errors(axes, histories, readouts=readouts, paper=paper, tested_on=tested_on)
    return figure


def draw_errors(
    axes: Axes,
    histories: Histories,
    *,
    readouts: Sequence[str] = ("average",),
    paper: float | None = None,
    tested_on: str = "test",
) -> None:
    """Training and test error against epochs."""
    for split, name, colour in (("train", "training", TRAIN), ("test", tested_on, TEST)):
        for readout in readouts:
            curves = series(histories, lambda line, s=split, r=readout: line[f"{s}_error"][r])
            label = f"{name}, {READOUT_NAMES[readout]}" if len(readouts) > 1 else name
            band(axes, curves, label, colour, READOUT_LINES[readout])
    if paper is not None:
        axes.axhline(paper, color=INK, linestyle=":", linewidth=1, label=f"paper, test {paper:g} %")
    label_epochs(axes, "error (%)")
    axes.set_ylim(bottom=0)
    legend_above(axes)


@styled
def coupling_curves(histories: Histories, key: str, names: Sequence[str], ylabel: str) -> Figure:
    """A number of every coupling against epochs, such as pi."""
    figure, ((axes,),) = new_figure()
    draw_couplings(axes, histories, key, names, ylabel)
    return figure


def draw_couplings(
    axes: Axes, histories: Histories, key: str, names: Sequence[str], ylabel: str
) -> None:
    """A number of every coupling against epochs."""
    for n, name in enumerate(names):
        curves = series(histories, lambda line, n=n: line[key][n])
        band(axes, curves, name, COLOURS[n % len(COLOURS)])
    label_epochs(axes, ylabel)
    legend_above(axes)


@styled
def training_curves(
    histories: Histories, names: Sequence[str], title: str, paper: float | None = None
) -> Figure:
    """Errors and, if weights are binary, pi of every coupling, side by side, against epochs."""
    binary = bool(histories[0][0]["pi"])
    figure, (panels,) = new_figure(1, 1 + binary, width=4.6, height=3)
    draw_errors(panels[0], histories, paper=paper)
    show_later_errors(panels[0], histories, paper or 0)
    if binary:
        draw_couplings(panels[1], histories, "pi", names, "π")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def show_later_errors(axes: Axes, histories: Histories, *others: float) -> None:
    """Room for errors from the second epoch on, and others; the first would squeeze them."""
    later = [
        line[error]["average"]
        for history in histories
        for line in history[1:] or history
        for error in ("train_error", "test_error")
    ]
    axes.set_ylim(0, 1.15 * max(*later, *others) or None)


@styled
def alpha_curves(histories: Histories, names: Sequence[str]) -> Figure:
    """alpha of every coupling against epochs; thin lines bound its channels' smallest and largest.

    A panel a coupling: their alphas may lie orders of magnitude apart.
    """
    figure, (panels,) = new_figure(1, len(names), width=max(5.4 / len(names), 2.3), height=2.8)
    for n, (axes, name) in enumerate(zip(panels, names, strict=True)):
        colour = COLOURS[n % len(COLOURS)]
        band(axes, series(histories, lambda line, n=n: line["alpha"][n]), "mean", colour)
        ends = [series(histories, lambda line, n=n, e=e: line["alpha_range"][n][e]) for e in (0, 1)]
        if (ends[0] != ends[1]).any():
            epochs = np.arange(1, ends[0].shape[1] + 1)
            for values, extreme in zip(ends, (np.min, np.max), strict=True):
                axes.plot(epochs, extreme(values, 0), color=colour, linewidth=0.7)
        label_epochs(axes, ALPHA if n == 0 else "", name)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.margins(y=0.15)
    return figure


@styled
def residual_curves(histories: Histories) -> Figure:
    """Mean residual at the end of the free phase against epochs, and each seed's as a thin line.

    A band of one standard deviation may have no lower end on a logarithmic axis.
    """
    figure, ((axes,),) = new_figure()
    curves = series(histories, lambda line: line["residual"])
    band(axes, curves.mean(0, keepdims=True), "mean", GREEN)
    if len(curves) > 1:
        epochs = range(1, curves.shape[1] + 1)
        axes.plot(epochs, curves.T, color=GREEN, linewidth=0.7, alpha=0.7)
    scale_wide(axes, curves.flatten().tolist())
    label_epochs(axes, "residual (largest change in a step)")
    return figure


@styled
def loss_curves(histories: Histories, tested_on: str = "test") -> Figure:
    """Loss in training and in testing against epochs."""
    figure, ((axes,),) = new_figure()
    found = []
    for key, name, colour in (("loss", "training", TRAIN), ("test_loss", tested_on, TEST)):
        curves = series(histories, lambda line, k=key: line[k])
        band(axes, curves, name, colour)
        found += curves.flatten().tolist()
    scale_wide(axes, found)
    label_epochs(axes, "loss")
    legend_above(axes)
    return figure


@styled
def rate_curves(rates: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str]) -> Figure:
    """Each rate of every coupling in each epoch, (epochs, couplings): a panel a rate."""
    figure, (panels,) = new_figure(1, len(rates), width=max(5.4 / len(rates), 2.3), height=2.8)
    for axes, (rate, values) in zip(panels, rates.items(), strict=True):
        curves = np.array(values, float).T
        for n, (name, curve) in enumerate(zip(names, curves, strict=True)):
            epochs = np.arange(1, len(curve) + 1)
            axes.step(epochs, curve, where="mid", color=COLOURS[n % len(COLOURS)], label=name)
        label_epochs(axes, "", rate)
        if (curves > 0).all():
            axes.set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3)
    return figure


MOST_LABELS = 12


@styled
def overlay(groups: Mapping[str, Histories]) -> Figure:
    """The test error of every run against epochs, a colour and a line style a group."""
    figure, ((axes,),) = new_figure(width=6.4, height=3.8)
    styles = ("-", "--", ":", "-.")
    for n, (label, histories) in enumerate(groups.items()):
        colour, style = COLOURS[n % len(COLOURS)], styles[n // len(COLOURS) % len(styles)]
        for m, history in enumerate(histories):
            errors = [line["test_error"]["average"] for line in history]
            name = shortened(label) + (f", run {m + 1}" if len(histories) > 1 else "")
            marker = "o" if len(errors) == 1 else ""
            axes.plot(range(1, len(errors) + 1), errors, style, marker=marker, color=colour,
                      label=name, linewidth=1.1)  # fmt: skip
    label_epochs(axes, "test error (%)")
    later = [line["test_error"]["average"] for each in groups.values() for history in each
             for line in history[1:] or history]  # fmt: skip
    axes.set_ylim(0, 1.15 * max(later) or None)
    first = [sum(map(len, list(groups.values())[:n])) for n in range(len(groups))]
    handles, _ = axes.get_legend_handles_labels()
    if len(groups) <= MOST_LABELS:
        labels = [shortened(label) for label in groups]
        columns = 1 if max(map(len, labels)) > 30 else 2
        figure.legend([handles[n] for n in first], labels, loc="outside upper left", ncols=columns)
    return figure


# --- weights ------------------------------------------------------------------------------------


def coloured(values: np.ndarray) -> np.ndarray:
    """Numbers (height, width) as pixels, uint8: blue below 0, white at 0, orange above."""
    most = np.nanmax(np.abs(values)) or 1.0
    share = np.clip(np.nan_to_num(values) / most, -1, 1)[..., None]
    white, low, high = (np.array(to_rgb(each)) for each in ("#f7f7f5", BLUE, ORANGE))
    pixels = np.where(share < 0, white + -share * (low - white), white + share * (high - white))
    pixels[np.isnan(values)] = (0.5, 0.5, 0.5)
    return np.round(255 * pixels).astype(np.uint8)


def tiled(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Small pictures (count, height, width) side by side, grey lines (nan) between them."""
    count, height, width = tiles.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for n, tile in enumerate(tiles):
        top, left = n // columns * (height + 1), n % columns * (width + 1)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def draw_readout_difference(axes: Axes, histories: Histories, tested_on: str = "test") -> None:
    """Error of a single neuron a class minus that of the class's average, against epochs."""
    for split, name, colour in (("train", "training", TRAIN), ("test", tested_on, TEST)):
        curves = series(
            histories,
            lambda line, s=split: line[f"{s}_error"]["single"] - line[f"{s}_error"]["average"],
        )
        band(axes, curves, name, colour)
    axes.axhline(0, color=INK, linewidth=0.8)
    label_epochs(axes, f"single {MINUS} average (percentage points)")
    axes.legend()


@styled
def readout_difference(histories: Histories, tested_on: str = "test") -> Figure:
    """How much worse one neuron a class reads than the class's average."""
    figure, ((axes,),) = new_figure()
    draw_readout_difference(axes, histories, tested_on)
    return figure


# --- one trained network ------------------------------------------------------------------------


@styled
def residual_trace(
    free: Sequence[float], nudged: Sequence[float], tolerance: float | None = None
) -> Figure:
    """Residual of every time step, of the free phase and then of the nudged one."""
    figure, ((axes,),) = new_figure()
    start = 1
    for values, name, colour in ((free, "free phase", TRAIN), (nudged, "nudged phase", TEST)):
        # A logarithmic axis has no place for a step in which nothing moved.
        shown = [value if value > 0 else np.nan for value in values]
        if values:
            axes.plot(range(start, start + len(values)), shown, "-o", color=colour, label=name)
        start += len(values)
    if tolerance:
        axes.axhline(tolerance, color=INK, linestyle=":", linewidth=1, label="tolerance")
    if any(value > 0 for value in [*free, *nudged]):
        axes.set_yscale("log")
    axes.set_xlabel("time step")
    axes.set_ylabel("residual (largest change)")
    count_along_x(axes)
    figure.legend(loc="outside upper right", ncols=3)
    return figure


@styled
def resting_places(layers: Sequence[str], shares: Mapping[str, Sequence[float]]) -> Figure:
    """Where the neurons of each layer rest: stacked shares, adding up to 1 in every layer."""
    figure, ((axes,),) = new_figure(height=0.9 + 0.42 * len(layers))
    left = np.zeros(len(layers))
    colours = {
        **dict.fromkeys(("silent", "lowest"), SKY),
        "between": YELLOW,
        **dict.fromkeys(("active", "highest"), ORANGE),
    }
    for name, values in shares.items():
        bars = axes.barh(layers, values, left=left, color=colours[name], label=name, height=0.6)
        texts = [f"{value:.0%}" if value >= 0.08 else "" for value in values]
        axes.bar_label(bars, texts, label_type="center", color="#101113", fontsize=8)
        left += np.asarray(values)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of neurons")
    figure.legend(loc="outside upper right", ncols=len(shares))
    return figure
