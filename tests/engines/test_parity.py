"""Every engine against the reference: the same numbers in, the same numbers out.

Networks of every kind that recipes have, small: see `cases`. Binary activations agree in every
bit. Real ones cannot: engines send activities with fewer bits than float32 has, and pools whose two
best are nearly equal may take the other one. How much that may change is not guessed but measured,
on the reference itself, see `Yardstick`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from cases import CUDA, GPU, Built, Case, build, cases
from torch import Tensor

from binep import HardSigmoid

SIGNS = ["positive", "random", "centered"]
NUDGES = ["live", "constant"]
SHAPES = ["dense-0", "dense-1", "dense-1", "dense-2", "dense-3"]
SHAPES += ["conv-1", "conv-2", "conv-2", "conv-3", "conv-4"]
# Words of 32 and 64 bits, and blocks of 512, begin and end here.
WIDE: dict[str, Any] = {
    "widths": [1, 31, 32, 33, 63, 64, 65, 257, 511, 512, 513],
    "channels": [1, 3, 9, 33, 65],
    "side": 7,
}
# Of these, float64 takes its time.
MIDDLING: dict[str, Any] = {"widths": WIDE["widths"], "channels": [1, 3, 9, 17], "side": 7}
# What Triton's interpreter takes seconds for.
NARROW: dict[str, Any] = {"widths": [5, 16, 20], "channels": [1, 3, 6], "side": 5}

BITS: dict[str, list[Any]] = {
    "learning.sign": SIGNS,
    "learning.nudge": NUDGES,
    "learning.beta": [2.0, 1.0, 0.7, -1.5],
    "learning.margin": [0.0, 0.0, 0.3],
    "threshold": [0.5, 0.5, 0.3, 0.7, -0.1, 1.5],
    "sigma": [0.5, 0.5, 0.2, 0.25, 3.0],
    "options.initial_state": [None, 0.0, 0.5, -0.5],
    "per_class": [1, 3, 5],
    "learn_scale": [False, True],
    "bias": ["drawn", "drawn", "zero", "none"],
    "noise": [0.0, 2.0],
    "kind": ["pixels", "pixels", "bits", "real"],
}
# Bits without an inner state: there is nothing that a slope or a time step could act on.
ALONE: dict[str, list[Any]] = {
    **{name: values for name, values in BITS.items() if name != "sigma"},
    "options.dynamics": ["hopfield"],
}
REAL: dict[str, list[Any]] = {
    "bits": [False],
    # A step brings any two states closer together, so that there is one place to come to rest.
    "norm": [0.35],
    "learning.sign": SIGNS,
    "learning.nudge": NUDGES,
    "learning.beta": [0.3, 0.5, -0.4],
    "options.clamp_nudged": [None, True, False],
    "options.nudged_sends": ["activity", "state"],
    "options.initial_state": [None, 0.5, 1.0, -0.5],
    "per_class": [1, 2, 5],
    "learn_scale": [False, True],
    "bias": ["drawn", "drawn", "zero", "none"],
    "kind": ["pixels", "bits", "real"],
}
SIZES = {"sizes": [(1, 2), (3, 3, 2), (9, 4), (64, 65)]}
REAL_SIZES = {"sizes": [(1, 2), (3, 3, 2), (9, 4), (17,)]}
FEW = {"sizes": [(2, 1)]}
# A GPU sums real numbers in an order of its own.
EXACT_INPUT = {"kind": ["pixels", "bits"]}
FEEDBACK: dict[str, list[Any]] = {"options.feedback": [None, None, 0.5, 0.125, 2.0]}
CPU_ONLY: dict[str, list[Any]] = {
    "options.dt": [0.5, 0.5, 0.3, 1.0],
    "learning.tolerance": [None, None, None, 0.0, 0.05],
}
IN_TURN = {"options.updates": [None, "alternating"]}
SETTLES = {"learning.free_steps": [12, 60], "learning.nudged_steps": [4, 9]}
SHORT = {"learning.free_steps": [4], "learning.nudged_steps": [3]}
# Some phases end before the network rests.
CUT_OFF = {"learning.free_steps": [1, 4], "learning.nudged_steps": [1, 3]}
THROUGH_TIME = {
    **{name: values for name, values in REAL.items() if not name.startswith("learning")},
    "learning.free_steps": [4],
    "learning.steps": [1, 2, 4],
    "learning.pulls_at": ["state", "drive"],
}


def named(found: list[Case]) -> list[Any]:
    return [pytest.param(case, id=str(case)) for case in found]


# --- bits ---------------------------------------------------------------------------------------


def assert_same_bits(one: Built, two: Built) -> None:
    for (name, p), q in zip(one.network.named_parameters(), two.network.parameters(), strict=True):
        assert torch.equal(p, q), name
    for n, (a, b) in enumerate(zip(one.momenta(), two.momenta(), strict=True)):
        assert torch.equal(a["momentum"], b["momentum"]), n
        assert (a["decay"], a["flips"]) == (b["decay"], b["flips"]), n


def assert_same_tally(found: Any, expected: Any, exact: bool) -> None:
    """Where not `exact`, a loss may be summed in another order, and steps at rest be left out."""
    if not exact:
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.free_steps <= expected.free_steps
        assert found.nudged_steps <= expected.nudged_steps
        same = {"loss": 0.0, "free_steps": 0, "nudged_steps": 0}
        found, expected = replace(found, **same), replace(expected, **same)
    assert found == expected


def assert_bits_agree(case: Case, engine: str) -> int:
    """After every mini-batch; returns how many weights have flipped."""
    place = CUDA if engine == "cuda" else torch.device("cpu")
    one, two = (build(case, name, device=place) for name in ("reference", engine))
    exact, flips = engine == "packed" or one.network.dynamics.bits, 0
    for x, labels in case.batches(place):
        for built in (one, two):
            built.engine.train(x, labels)
        expected = one.engine.collect()
        assert_same_tally(two.engine.collect(), expected, exact)
        assert_same_bits(one, two)
        flips += sum(expected.flips)
        expected = one.engine.evaluate(x, labels)
        assert_same_tally(two.engine.evaluate(x, labels), expected, exact)
    return flips


@pytest.mark.parametrize(
    "case", named(cases(70, {**BITS, **SETTLES, **CPU_ONLY, **FEEDBACK, **SIZES}, SHAPES, **WIDE))
)
def test_packed_has_the_bits_of_the_reference(case: Case):
    pytest.importorskip("numba")
    assert_bits_agree(case, "packed")


@pytest.mark.parametrize(
    "case",
    named(
        cases(
            40,
            {**ALONE, **SETTLES, **FEEDBACK, **SIZES, "learning.tolerance": [None, 0.05]},
            SHAPES,
            **WIDE,
        )
    ),
)
def test_packed_has_the_bits_of_the_reference_without_an_inner_state(case: Case):
    pytest.importorskip("numba")
    assert_bits_agree(case, "packed")


@pytest.mark.parametrize(
    "case",
    named(
        cases(100, {**BITS, **SETTLES, **SIZES, **EXACT_INPUT}, SHAPES, **WIDE)
        if GPU
        else cases(12, {**BITS, **SHORT, **FEW}, SHAPES, **NARROW)
    ),
)
def test_cuda_has_the_bits_of_the_reference(case: Case):
    pytest.importorskip("triton")
    assert_bits_agree(case, "cuda")


@pytest.mark.parametrize(
    "case",
    named(
        cases(60, {**ALONE, **SETTLES, **SIZES, **EXACT_INPUT}, SHAPES, **WIDE)
        if GPU
        else cases(12, {**ALONE, **CUT_OFF, **FEW, **EXACT_INPUT}, SHAPES, **NARROW)
    ),
)
def test_cuda_has_the_bits_of_the_reference_without_an_inner_state(case: Case):
    pytest.importorskip("triton")
    assert_bits_agree(case, "cuda")


# --- real numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounded(HardSigmoid):
    """Sends multiples of `unit`, moved by `offset`, as an engine with so few bits might."""

    unit: float = 1.0
    offset: float = 0.0

    def __call__(self, state: Tensor) -> Tensor:
        sent = state.clamp(0, 1)
        rounded = ((sent / self.unit + self.offset).round() - self.offset) * self.unit
        return sent + (rounded.clamp(0, 1) - sent).detach()


Numbers = dict[str, Tensor]


def trained(case: Case, engine: str, **options: Any) -> list[Numbers]:
    """What has been learnt and counted after the first and after the last mini-batch."""
    built = build(case, engine, **options)
    before = {name: p.detach().double().clone() for name, p in built.network.named_parameters()}
    double = options.get("dtype") == torch.float64
    found, total = [], None
    for x, labels in case.batches(options["device"]):
        built.engine.train(x.double() if double and x.is_floating_point() else x, labels)
        tally = built.engine.collect()
        total = tally if total is None else total + tally
        found.append(_numbers(built, before, asdict(total)))
    return [found[0], found[-1]]


def _numbers(built: Built, before: Numbers, tally: Mapping[str, Any]) -> Numbers:
    numbers = {
        f"update of {name}": p.detach().double() - before[name]
        for name, p in built.network.named_parameters()
        if not name.endswith("signs")
    }
    for n, state in enumerate(built.momenta()):
        numbers[f"momentum {n}"] = state["decay"] * state["momentum"].double()
    for name, value in tally.items():
        if name not in ("free_steps", "nudged_steps"):
            values = [*value.values()] if isinstance(value, dict) else value
            numbers[f"tally {name}"] = torch.as_tensor(values, dtype=torch.float64)
    return {name: t.cpu() for name, t in numbers.items()}


class Yardstick:
    """How far from the truth a correct engine may end up that sends activities in so few bits.

    The truth is the reference in float64. Three more runs of it round what is sent to multiples of
    `unit`, on grids of their own; where a network comes to rest (`rests`) they start elsewhere,
    since there may be several rests and many ways to get there. Their largest distance from the
    truth (L2, tensor by tensor) says what rounding costs here, near ties of pools and thresholds
    included; `FACTOR` is for the chance that three are not the worst. That is some `unit` mostly,
    and far less than a wrong tap or a sample left out makes. Where rounding decides everything a
    case says nothing: `sharp` are the tensors whose bound is well below their own norm.
    """

    FACTOR = 10.0
    LEAST = 2.0**-21  # float32 in another order of summation, relative

    def __init__(self, case: Case, unit: float, device: torch.device, rests: bool) -> None:
        double: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.unit, self.sizes = unit, case.sizes
        self.pools = any(conv["pool"] > 1 for conv in case.convs)
        self.truth = trained(case, "reference", **double)
        start = build(case, "reference").network.initial_state
        rough = []
        for offset, shift in ((0.0, 0.0), (1 / 3, 0.3), (2 / 3, -0.3)):
            options = {**case.options, "initial_state": start + shift * rests}
            rounded = {**double, "neuron": Rounded(unit, offset)}
            rough.append(trained(replace(case, options=options), "reference", **rounded))
        self.reach = [
            {
                name: max(float((t - each[when][name]).norm()) for each in rough)
                for name, t in it.items()
            }
            for when, it in enumerate(self.truth)
        ]

    def bound(self, when: int, name: str) -> float:
        truth = self.truth[when][name]
        # What was learnt is the difference of a parameter before and after, in float32.
        least = self.LEAST * (float(truth.norm()) + truth.numel() ** 0.5)
        if self.pools:
            # One pool of one sample that takes another winner.
            least += (0.05 if min(self.sizes) > 3 else 0.3) * float(truth.norm())
        if name == "tally flips":
            least = max(least, 1.0)  # one momentum that all but reached its threshold
        if name == "tally residual":
            least += self.unit * (1 + float(self.truth[when]["tally batches"]))
        return self.FACTOR * self.reach[when][name] + least

    def check(self, found: list[Numbers]) -> None:
        for when, numbers in enumerate(found):
            assert numbers.keys() == self.truth[when].keys()
            for name, number in numbers.items():
                gap = float((number - self.truth[when][name]).norm())
                assert gap <= self.bound(when, name), (when, name, gap)

    def sharp(self) -> list[bool]:
        return [
            self.bound(0, name) < 0.2 * float(t.norm())
            for name, t in self.truth[0].items()
            if name.startswith(("momentum", "update"))
        ]


def assert_real_agree(case: Case, engine: str, unit: float, rests: bool) -> None:
    place = CUDA if engine == "cuda" else torch.device("cpu")
    Yardstick(case, unit, place, rests).check(trained(case, engine, device=place))


# It sends multiples of 2**-18 or finer and holds back less than one: in either direction, in both
# phases, and not the same. So it may be off by a few of them.
DELTA_UNIT = 2.0**-15
# float16 holds activities of 1/2 to 1 in steps of 2**-11.
CUDA_UNIT = 2.0**-11

RESTS = {"learning.free_steps": [60], "learning.nudged_steps": [4, 9]}
ORDERS = {"options.updates": ["simultaneous", "alternating"]}
DELTA = cases(50, {**REAL, **RESTS, **REAL_SIZES, **ORDERS}, SHAPES, **MIDDLING)
CUDA_REAL = (
    cases(60, {**REAL, **IN_TURN, **RESTS, **REAL_SIZES}, SHAPES, **MIDDLING)
    if GPU
    else cases(12, {**REAL, **IN_TURN, **SHORT, **FEW}, SHAPES, **NARROW)
)
CUDA_TIME = cases(40 if GPU else 6, {**THROUGH_TIME, **FEW}, SHAPES, **NARROW)


@pytest.mark.parametrize("case", named(DELTA))
def test_delta_agrees_with_the_reference(case: Case):
    pytest.importorskip("numba")
    assert_real_agree(case, "delta", DELTA_UNIT, rests=True)


@pytest.mark.parametrize("case", named(CUDA_REAL))
def test_cuda_agrees_with_the_reference(case: Case):
    pytest.importorskip("triton")
    assert_real_agree(case, "cuda", CUDA_UNIT, rests=GPU)


@pytest.mark.parametrize("case", named(CUDA_TIME))
def test_cuda_backpropagates_as_the_reference_does(case: Case):
    pytest.importorskip("triton")
    assert_real_agree(case, "cuda", CUDA_UNIT, rests=False)


def test_bounds_could_be_missed():
    """Of many numbers, what the yardstick measures is well below the number itself."""
    some = [case for case in DELTA if case.sizes == (9, 4)]
    found = [Yardstick(case, DELTA_UNIT, torch.device("cpu"), True).sharp() for case in some]
    found += [Yardstick(case, CUDA_UNIT, CUDA, GPU).sharp() for case in CUDA_REAL[:10]]
    sharp = [one for each in found for one in each]
    assert sum(sharp) > len(sharp) / 3
