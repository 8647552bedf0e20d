"""EP against BPTT, parameter by parameter: how good is the gradient that a recipe learns from?

On one mini-batch, EP's estimate after t nudged steps is compared with backpropagation through the
last t steps of the free phase, for t = 1..K. The theorem says that they agree as beta goes to 0,
where the free phase has converged and no neuron is saturated: how far that is so is part of the
result. In prototypical dynamics the nudge stands outside of rho, so the loss to compare with pulls
at the outputs' drive: at their state it has no gradient where an output is saturated.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from binep.core import metrics
from binep.core.dynamics import Prototypical
from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, fill_gradients
from binep.core.metrics import Gradients
from binep.core.network import Clamped, Network
from binep.core.neurons import Neuron, range_of
from binep.core.relaxation import Relaxation, step
from binep.data import Folder, shuffled
from binep.engines.select import select_device
from binep.errors import BinepError, choose
from binep.report import figures
from binep.training import provenance
from binep.training.recipe import Recipe
from binep.training.sections import LearningKeys
from binep.training.trainer import random_streams

BATCH = 32
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MARKS = {"positive": "+β", "negative": "-β", "centered": "centered"}
SYNAPSES_DRAWN = 4
ROWS = ("projection of dL/dW", "dL/dW, some synapses", "relative distance")

# A phase that has come to rest exactly goes on unchanged: it may end there.
AT_REST = 0.0
# Relative distances below this are rounding.
ROUNDING = 1e-12

# What a parameter is called, by the last part of its name in the network.
SYMBOLS = {"signs": "W", "weight": "W", "bias": "b", "scale": figures.ALPHA}


@dataclass(frozen=True)
class Layer:
    """Where the neurons of a layer rest at the end of the free phase: shares at exactly 0 and 1."""

    neurons: int
    at_zero: float
    at_one: float

    @property
    def saturated(self) -> float:
        return self.at_zero + self.at_one


@dataclass(frozen=True)
class Agreement:
    """EP's estimate of one parameter's gradient against BPTT's, for t = 1..K steps of each.

    Attributes:
        coupling: from the input, beginning with 0. parameter: W, b or alpha.
        beta: strength of the nudge. sign: "positive", "negative" or "centered".
        cosine: `<ep, bptt> / (|ep| |bptt|)`. distance: `|ep - bptt| / |bptt|`, infinite where only
            BPTT's is zero.
    """

    coupling: int
    parameter: str
    beta: float
    sign: str
    cosine: list[float]
    distance: list[float]


@dataclass(frozen=True)
class Trace:
    """One number of a coupling's weight gradient for t = 1..K: as EP (centered) and BPTT have it.

    `name` is "projection", on the direction of BPTT's gradient at K, or the index of a synapse.
    """

    coupling: int
    name: str
    ep: list[float]
    bptt: list[float]


@dataclass(frozen=True)
class GradCheck:
    """What `gradcheck` found, in plain data.

    Attributes:
        pulls_at: what the loss of BPTT pulls at, the outputs' "state" or "drive".
        unclamped: the same where nudged outputs are not clamped, if here they are.
    """

    recipe: str
    trained: bool
    seed: int
    samples: int
    dtype: str
    free_steps: int
    steps: int
    betas: list[float]
    nudge: str
    residual: float
    pulls_at: str
    couplings: list[str]
    layers: list[Layer]
    agreements: list[Agreement]
    traces: list[Trace]
    environment: dict[str, Any]
    unclamped: "GradCheck | None" = None

    def to_json(self) -> str:
        """JSON for a program to read; what is not finite becomes null."""
        return json.dumps(_finite(asdict(self)), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- checking -----------------------------------------------------------------------------------


def gradcheck(
    recipe: Recipe,
    *,
    seed: int = 0,
    batch: int = BATCH,
    steps: int | None = None,
    betas: Sequence[float] | None = None,
    dtype: str = "float32",
    pulls_at: str | None = None,
    network: Network | None = None,
    data_dir: Folder | None = None,
    offline: bool = False,
    device: str = "auto",
) -> GradCheck:
    """Compare EP with BPTT on a mini-batch of training images, in a recipe's network.

    Args:
        seed: of the fresh network and of the mini-batch: those that training begins with.
        batch: images. steps: K, by default the recipe's. betas: by default the recipe's.
        dtype: "float32" or "float64".
        pulls_at: what the loss of BPTT pulls at; by default what EP's nudge does: the outputs'
            drive in prototypical dynamics, where the nudge stands outside of rho.
        network: a trained one, in place of a fresh one; it is not changed.
    """
    choose(dtype, DTYPES, "dtype")
    steps = recipe.learning.nudged_steps if steps is None else steps
    # Both signs of each are compared.
    strengths = list(dict.fromkeys(abs(beta) for beta in betas or [recipe.learning.beta]))
    _check(recipe, batch, steps, strengths)
    place = select_device(device)
    streams = random_streams(seed)
    dataset = recipe.load_data(data_dir=data_dir, offline=offline).to(place)
    train = recipe.hold_out(dataset).train
    chosen = shuffled(len(train), streams["shuffle"])[:batch]
    checked = recipe.build_network(streams["init"]) if network is None else copy.deepcopy(network)
    x, labels = dataset.inputs(train.images[chosen]), train.labels[chosen]
    pulls_at = _where_pulled(recipe, checked) if pulls_at is None else pulls_at

    def check(network: Network) -> GradCheck:
        bench = _Bench.set_up(network, x, labels, recipe.learning, pulls_at)
        generator = torch.Generator().manual_seed(seed)
        agreements, traces = _compare(bench, steps, strengths, generator)
        return GradCheck(
            recipe=recipe.name,
            trained=trained,
            seed=seed,
            samples=len(chosen),
            dtype=dtype,
            free_steps=recipe.learning.free_steps,
            steps=steps,
            betas=strengths,
            nudge=recipe.learning.nudge,
            residual=float(bench.free.residuals[-1]),
            pulls_at=pulls_at,
            couplings=figures.coupling_names(recipe),
            layers=[_layer(*each) for each in zip(network.neurons, bench.free.state, strict=True)],
            agreements=agreements,
            traces=traces,
            environment=provenance.environment(place),
        )

    trained = network is not None
    found = check(checked.to(place, DTYPES[dtype]))
    if pulls_at == "drive" and getattr(checked.dynamics, "clamp_nudged", False):
        checked.dynamics = Prototypical(clamp_nudged=False, send_state=True)
        found = replace(found, unclamped=check(checked))
    return found


def _check(recipe: Recipe, batch: int, steps: int, betas: list[float]) -> None:
    if recipe.network.sends_bits:
        raise BinepError(
            f"recipe {recipe.name} has binary activations: a step has no derivative, so there is "
            "no BPTT to compare with; allowed are recipes with network.activations='real'"
        )
    for name, value in (("batch", batch), ("steps", steps)):
        if value < 1:
            raise BinepError(f"{name}={value}: allowed is at least 1")
    if not all(0 < beta < math.inf for beta in betas):
        raise BinepError(f"betas={betas}: allowed are finite numbers other than 0")


def _where_pulled(recipe: Recipe, network: Network) -> str:
    """What BPTT's loss has to pull at to be what EP's nudge does, or what a recipe trains with."""
    if recipe.learning.method == "bptt":
        return recipe.learning.pulls_at
    outside = isinstance(network.dynamics, Prototypical) and network.cost == "mse"
    return "drive" if outside else recipe.learning.pulls_at


def _layer(neuron: Neuron, state: Tensor) -> Layer:
    lowest, highest = (float((state == end).double().mean()) for end in range_of(neuron))
    return Layer(state[0].numel(), lowest, highest)


@dataclass(frozen=True, eq=False)
class _Bench:
    """A network and a mini-batch at the end of its free phase, ready to be nudged."""

    network: Network
    x: Tensor
    labels: Tensor
    keys: LearningKeys
    clamped: Clamped
    free: Relaxation
    readout: dict[str, Tensor]
    pulls_at: str

    @classmethod
    @torch.no_grad()
    def set_up(
        cls, network: Network, x: Tensor, labels: Tensor, keys: LearningKeys, pulls_at: str
    ) -> "_Bench":
        # Besides the free phase this gives the gradient of a softmax readout, which stands outside
        # the dynamics and needs no nudge.
        learning = EquilibriumPropagation(keys.free_steps, 1, 1.0, tolerance=AT_REST)
        phases = learning.backward(network, x, labels)
        inside = tuple(f"couplings.{n}." for n in range(len(network.relaxing)))
        found = metrics.true_gradients(network)
        readout = {name: g for name, g in found.items() if not name.startswith(inside)}
        return cls(network, x, labels, keys, network.clamp(x), phases.free, readout, pulls_at)

    def nudged(self, beta: float) -> Iterator[Relaxation]:
        """The nudged phase from the free state, handed over after every step."""
        network, state, target = self.network, self.free.state, self.network.target(self.labels)
        force = None
        while True:
            with torch.no_grad():
                if force is None or self.keys.nudge == "live":
                    force = beta * network.pull(state, target)
                state = step(network, self.clamped, state, force)
                switches = network.switches(self.clamped, network.activity(state))
            yield Relaxation(state, switches, torch.empty(0))

    @torch.no_grad()
    def ep(self, nudged: Relaxation, base: Relaxation, span: float) -> Gradients:
        fill_gradients(self.network, self.clamped, nudged, base, span)
        return metrics.true_gradients(self.network) | self.readout

    def bptt(self, t: int) -> Gradients:
        learning = BackpropThroughTime(
            self.keys.free_steps, t, tolerance=AT_REST, pulls_at=self.pulls_at
        )
        learning.backward(self.network, self.x, self.labels)
        return metrics.gradients(self.network)


def _compare(
    bench: _Bench, steps: int, betas: list[float], generator: torch.Generator
) -> tuple[list[Agreement], list[Trace]]:
    """Run all nudged phases step by step and compare as they go, keeping nothing large."""
    probes = _probes(bench.bptt(steps), generator)
    traces = [Trace(n, name, [], []) for n, name, _, _ in probes]
    agreements: dict[tuple[str, float, str], Agreement] = {}
    phases = {beta: bench.nudged(beta) for strength in betas for beta in (strength, -strength)}
    for t in range(1, steps + 1):
        reached = {beta: next(phase) for beta, phase in phases.items()}
        bptt = bench.bptt(t)
        for beta in betas:
            for sign, nudged, base, span in (
                ("positive", reached[beta], bench.free, beta),
                ("negative", reached[-beta], bench.free, -beta),
                ("centered", reached[beta], reached[-beta], 2 * beta),
            ):
                ep = bench.ep(nudged, base, span)
                cosine, distance = metrics.cosine(ep, bptt), metrics.relative_distance(ep, bptt)
                for name in bptt:
                    _, coupling, *_, last = name.split(".")
                    empty = Agreement(int(coupling), SYMBOLS[last], beta, sign, [], [])
                    found = agreements.setdefault((name, beta, sign), empty)
                    found.cosine.append(cosine[name])
                    found.distance.append(distance[name])
                if sign == "centered" and beta == betas[0]:
                    for trace, (_, _, name, probe) in zip(traces, probes, strict=True):
                        trace.ep.append(probe(ep[name]))
                        trace.bptt.append(probe(bptt[name]))
    return list(agreements.values()), traces


Probe = tuple[int, str, str, Callable[[Tensor], float]]


def _probes(final: Gradients, generator: torch.Generator) -> list[Probe]:
    """What to follow of each coupling's weight gradient, given BPTT's at K.

    Its projection on that gradient's direction, and a few synapses drawn from those that have one.
    """
    found: list[Probe] = []
    for name, gradient in final.items():
        _, coupling, *_, last = name.split(".")
        if SYMBOLS[last] != "W":
            continue
        direction = gradient.double() / gradient.double().norm().clamp(min=1e-30)
        found.append(
            (int(coupling), "projection", name, lambda g, d=direction: float((g * d).sum()))
        )
        moving = gradient.flatten().nonzero().flatten().cpu()
        drawn = moving[torch.randperm(len(moving), generator=generator)[:SYNAPSES_DRAWN]].tolist()
        for place in sorted(drawn):
            index = ", ".join(str(int(i)) for i in np.unravel_index(place, gradient.shape))
            found.append((int(coupling), index, name, lambda g, p=place: float(g.flatten()[p])))
    return found


# --- showing ------------------------------------------------------------------------------------


def table(result: GradCheck) -> str:
    """The result at t = K as text: where it was measured, what the theorem needs, the agreement."""
    saturated = ", ".join(
        f"{'output' if n == len(result.layers) else f'layer {n}'} {layer.saturated:.0%} of "
        f"{layer.neurons}"
        for n, layer in enumerate(result.layers, start=1)
    )
    parts = [
        f"{result.recipe}: EP against BPTT, {_conditions(result)}\n"
        f"free phase: last residual {result.residual:.1e}; neurons at rest on 0 or 1 (saturated): "
        f"{saturated}"
    ]
    if result.unclamped is not None:
        parts += [
            "As the theorem has it, nudged outputs free to leave [0, 1] "
            "(network.clamp_nudged = false):",
            _rows(result.unclamped),
            "As the recipe has it, nudged outputs clamped to [0, 1]: one that rests on 0 or 1 "
            "feels a nudge\ninwards only. What -β would do there is missing, and half of what "
            "centered would do:",
        ]
    parts += [
        _rows(result),
        "cos = <ep, bptt> / (|ep| |bptt|): 1 is perfect. dist = |ep - bptt| / |bptt|: 0 is.\n"
        "EP becomes BPTT as β goes to 0, where the free phase has converged. "
        f"{REFERENCES[result.pulls_at]}",
    ]
    return "\n\n".join(parts)


REFERENCES = {
    "drive": "BPTT's loss pulls\nat the outputs' drive here, as EP's nudge does outside of rho: a "
    "saturated output feels both.",
    "state": "BPTT's loss pulls\nat the outputs' state here: it gives no gradient to an output "
    "that is saturated away from its\ntarget, which EP's nudge wakes in prototypical dynamics.",
}


def _rows(result: GradCheck) -> str:
    rows: dict[tuple[int, str, float], dict[str, Agreement]] = {}
    for found in result.agreements:
        rows.setdefault((found.coupling, found.parameter, found.beta), {})[found.sign] = found
    header = ["coupling", "", "β"]
    header += [f"{what} {mark}" for what in ("cos", "dist") for mark in MARKS.values()]
    body = [
        [
            result.couplings[coupling],
            parameter,
            f"{beta:g}",
            *(f"{signs[sign].cosine[-1]:.4f}" for sign in MARKS),
            *(f"{signs[sign].distance[-1]:.1e}" for sign in MARKS),
        ]
        for (coupling, parameter, beta), signs in sorted(rows.items(), key=_order)
    ]
    return figures.text_table(header, body, left=2)


def _order(row: tuple[tuple[int, str, float], Any]) -> tuple[int, int, float]:
    coupling, parameter, beta = row[0]
    return coupling, list(SYMBOLS.values()).index(parameter), -beta


def _conditions(result: GradCheck) -> str:
    return (
        f"{'trained' if result.trained else 'fresh'} network, seed {result.seed}, "
        f"n = {result.samples} images, {result.dtype}, T = {result.free_steps}, "
        f"K = {result.steps}, {result.nudge} nudge, β = {result.betas[0]:g}, BPTT at the "
        f"{result.pulls_at}"
    )


@figures.styled
def figure(result: GradCheck) -> Figure:
    """A column a coupling: its weight gradient's projection, some synapses, and the distance."""
    columns = len(result.couplings)
    drawing, panels = figures.new_figure(3, columns, width=max(2.9, 7 / columns), height=2.2)
    drawing.suptitle(f"{result.recipe}: {_conditions(result)}", x=0.01, ha="left", fontsize=9)
    for n, (name, axes) in enumerate(zip(result.couplings, zip(*panels, strict=True), strict=True)):
        axes[0].set_title(name)
        mine = [trace for trace in result.traces if trace.coupling == n]
        _draw_traces(axes[0], [trace for trace in mine if trace.name == "projection"])
        _draw_traces(axes[1], [trace for trace in mine if trace.name != "projection"])
        _draw_distances(axes[2], [a for a in result.agreements if a.coupling == n])
        axes[2].set_xlabel("steps t")
        for panel in axes:
            panel.set_xlim(0.5, result.steps + 0.5)
            figures.count_along_x(panel)
    for row, label in zip(panels, ROWS, strict=True):
        row[0].set_ylabel(label)
    # One legend a figure: the panels of a row share it.
    lines = {
        line.get_label(): line
        for axes in (panels[0][0], panels[2][0])
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }
    drawing.legend(lines.values(), [str(k) for k in lines], loc="outside lower center", ncols=5)
    return drawing


def _draw_traces(axes: Axes, traces: list[Trace]) -> None:
    """BPTT as a broad pale line, EP as a thin dashed one: where they agree, on top of it."""
    for n, trace in enumerate(traces):
        colour, steps = figures.COLOURS[n], range(1, len(trace.ep) + 1)
        axes.plot(steps, trace.bptt, color=colour, linewidth=4, alpha=0.35, label="BPTT")
        axes.plot(steps, trace.ep, "--", color=colour, linewidth=1.3, label="EP, centered")
    axes.axhline(0, color=figures.INK, linewidth=0.8)
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))


def _draw_distances(axes: Axes, agreements: list[Agreement]) -> None:
    """The distance of W at the first beta, by sign; no point where it is rounding or infinite."""
    colours = dict(zip(MARKS, (figures.BLUE, figures.ORANGE, figures.GREEN), strict=True))
    first, shown = agreements[0].beta, list[float]()
    for found in (a for a in agreements if a.parameter == "W" and a.beta == first):
        values = [d if ROUNDING < d < math.inf else math.nan for d in found.distance]
        label = f"distance, {MARKS[found.sign]}"
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, "-o", color=colours[found.sign], label=label)
        shown += values
    figures.scale_wide(axes, shown)
