"""The CUDA engine's parts, and networks that `test_parity` has no room for.

Without a GPU its Triton kernels run in Triton's interpreter; with one, the same tests run on it.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton
import triton.language as tl

from binep import (
    BackpropThroughTime,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Homeostasis,
    Network,
    assign_optimizers,
    relax,
)
from binep.core import metrics
from binep.core.metrics import Tally
from binep.core.network import UPDATES
from binep.core.plan import PhasePlan
from binep.core.relaxation import Nudge
from binep.engines.cuda import through_time
from binep.engines.cuda.convolution import channels_last, convolve
from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.layout import split_digits
from binep.engines.cuda.packing import Layout
from binep.engines.cuda.relaxers import dense_delta, dense_events
from binep.engines.cuda.relaxers.dense_delta import DenseDelta
from binep.engines.cuda.relaxers.stepwise import Stepwise
from binep.engines.cuda.rules import Target
from binep.engines.cuda.through_time import ThroughTimeEngine
from binep.engines.torch.engine import ReferenceEngine, tensor_cores

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# Outputs that a nudge can push beyond [0, 1], and that send where they are.
STATES = {"clamp_nudged": False, "nudged_sends": "state"}


def build(
    kind: str,
    engine,
    *,
    sign="random",
    nudge="live",
    sigma=0.5,
    learn_scale=True,
    noise=0.5,
    free_steps=6,
    margin=0.0,
    dynamics=None,
    **top,
):
    """A small network with an engine, everything from one seed."""
    torch.manual_seed(7)
    bits = kind.endswith("wa")
    per_class = {"wide-wa": 4, "many-w": 5}.get(kind, 3 if bits else 1)
    options = {"learn_scale": learn_scale}
    if kind.startswith("conv-thin"):
        chain = [
            ConvPool(1, 5, kernel=3, padding=1, pool=2, **options),
            ConvPool(5, 17, kernel=3, padding=1, pool=2, **options),
            Dense(4 * 17, 4, **options),
        ]
    elif kind.startswith("conv-moving"):
        chain = [
            ConvPool(1, 16, kernel=3, padding=1, pool=2, **options),
            ConvPool(16, 32, kernel=3, padding=1, pool=2, **options),
            Dense(4 * 32, 4, **options),
        ]
    elif kind.startswith("conv-deep"):
        chain = [
            ConvPool(1, 5, kernel=3, padding=1, pool=2, **options),
            ConvPool(5, 18, kernel=3, padding=1, **options),
            ConvPool(18, 7, kernel=2, pool=3, **options),
            Dense(7, 4 * per_class, **options),
        ]
    elif kind.startswith("conv-one"):
        chain = [
            ConvPool(1, 6, kernel=3, padding=1, pool=2, **options),
            Dense(16 * 6, 4 * per_class, **options),
        ]
    elif kind.startswith("conv"):
        chain = [
            ConvPool(1, 5, kernel=3, padding=1, pool=2, **options),
            ConvPool(5, 6, kernel=3, padding=1, pool=3, **options),
            Dense(6, 7, **options),
            Dense(7, 4 * per_class, **options),
        ]
    elif kind.startswith("thin"):
        chain = [Dense(64, 45, **options), Dense(45, 4 * per_class, **options)]
    elif kind.startswith("wide"):
        chain = [
            Dense(64, 304, **options),
            Dense(304, 264, **options),
            Dense(264, 4 * per_class, **options),
        ]
    else:
        chain = [
            Dense(64, 33, **options),
            Dense(33, 16, **options),
            Dense(16, 4 * per_class, **options),
        ]
    neuron = Heaviside(sigma=sigma) if bits else HardSigmoid()
    dynamics = dynamics or ("energy" if bits else "prototypical")
    net = Network((1, 8, 8), chain, neuron, dynamics, per_class, classes=4, **top).to(DEVICE)
    generator = torch.Generator().manual_seed(1)
    beta = 2.0 if bits else 0.3
    ep = EquilibriumPropagation(
        free_steps, 4, beta, sign, nudge, generator=generator, margin=margin
    )
    optimizers = assign_optimizers(
        net,
        gamma=1e-2,
        tau=1e-3,
        lr_bias=1e-2,
        lr_scale=1e-4 if learn_scale else None,
        noise=noise,
        generator=torch.Generator(DEVICE).manual_seed(2),
    )
    return net, engine(net, ep, optimizers)


def train_both(kind: str, sizes=(3, 2), pixels=True, **options):
    """The same mini-batches through both engines; the last one is smaller."""
    pair = [build(kind, engine, **options) for engine in (ReferenceEngine, CudaEngine)]
    generator = torch.Generator().manual_seed(3)
    x = labels = torch.empty(0)
    for size in sizes:
        x = torch.randint(256, (size, 1, 8, 8), generator=generator, dtype=torch.uint8)
        x = (x if pixels else x / 255).to(DEVICE)
        labels = torch.randint(4, (size,), generator=generator).to(DEVICE)
        for _, engine in pair:
            engine.train(x, labels)
    return pair, x, labels


def assert_same(found: Tally, tally: Tally) -> None:
    """Equal in all that is counted; the loss is summed in another order, steps may be fewer."""
    assert found.loss == pytest.approx(tally.loss, rel=1e-6)
    assert found.free_steps <= tally.free_steps and found.nudged_steps <= tally.nudged_steps
    uncounted = {"loss": 0.0, "free_steps": 0, "nudged_steps": 0}
    assert found.replace(**uncounted) == tally.replace(**uncounted)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("wide-wa", {}),
        ("wide-wa", {"margin": 0.2, "nudge": "constant"}),
        ("wide-wa", {"dynamics": "hopfield", "free_steps": 12, "sign": "centered"}),
    ],
)
def test_wide_layers_of_bits_agree_bit_for_bit(
    kind: str, options: dict, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dense_events, "WIDE", 16)
    ((net, engine), (other, fast)), x, labels = train_both(kind, **options)
    assert_same(fast.evaluate(x, labels), engine.evaluate(x, labels))
    tally = engine.collect()
    assert_same(fast.collect(), tally)
    assert sum(tally.flips) > 0
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
    for a, b in zip(net.couplings, other.couplings, strict=True):
        mine, theirs = engine.optimizers.bop.state[a.signs], fast.optimizers.bop.state[b.signs]
        assert torch.equal(mine["momentum"], theirs["momentum"])
        assert (mine["decay"], mine["flips"]) == (theirs["decay"], theirs["flips"])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("conv-thin-w", {"sizes": (5,)}),
        ("conv-thin-w", {"sizes": (5,), "sign": "centered", **STATES}),
        ("conv-moving-w", {"sizes": (5,)}),
        ("conv-moving-w", {"sizes": (3,), "sign": "centered", "nudge": "constant", **STATES}),
        ("many-w", STATES),
    ],
)
def test_many_channels_and_outputs_agree_within_their_precision(kind: str, options: dict):
    ((net, engine), (other, fast)), _, _ = train_both(kind, **options)
    tally, found = engine.collect(), fast.collect()
    assert found.wrong == tally.wrong
    assert found.loss == pytest.approx(tally.loss, rel=5e-3)
    a = {n: engine.optimizers.bop.momentum(c.signs) for n, c in enumerate(net.couplings)}
    b = {n: fast.optimizers.bop.momentum(c.signs) for n, c in enumerate(other.couplings)}
    cosines = metrics.cosine({str(k): v for k, v in a.items()}, {str(k): v for k, v in b.items()})
    assert min(cosines.values()) > 0.999


def settle(engine, first, steps: int):
    """A free phase of a mini-batch."""
    return engine.relaxer.relax(first, PhasePlan(steps), None, None)


def push(engine, first, free, labels, direction: int = 1):
    """The nudged phase that follows it."""
    engine.numbers.sign.fill_(1.0)
    phase = engine.learning.plan(direction).phases[1]
    return engine.relaxer.relax(first, phase, free, labels)


@pytest.mark.parametrize("kind", ["dense-w", "many-w", "thin-w", "conv-thin-w", "conv-moving-w"])
@torch.no_grad()
def test_outputs_pushed_below_0_are_felt_by_the_layer_below(kind: str):
    """Saturated at 0 they have no activity to lose, but a state that can be sent."""
    net, engine = build(kind, CudaEngine, **STATES)
    for coupling in net.couplings[1:]:
        coupling.bias.fill_(-9 if coupling is net.couplings[-1] else 0.1)
    engine._take_up()
    x = torch.randint(256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(3))
    x, labels = x.to(torch.uint8).to(DEVICE), torch.arange(3, device=DEVICE)
    first, _ = engine._clamp(x, engine._input(x))
    free = settle(engine, first, 6)
    nudged = push(engine, first, free, labels, -1)
    start = relax(net, x, net.initial(x), 6)
    there = relax(net, x, start.state, 4, Nudge(net.target(labels), -0.3))
    for found, expected in zip(nudged.state, there.state, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    assert (there.state[-2] - start.state[-2]).abs().max() > 0.02


@torch.no_grad()
def deep(x: torch.Tensor, scaled: float = 1.0, updates: str = "simultaneous"):
    """An engine that relaxes by differences, and the first drive; small scales let it rest soon."""
    torch.manual_seed(7)
    chain = [Dense(9, 12), Dense(12, 7), Dense(7, 3)]
    start = 0.0 if updates == "simultaneous" else 0.5
    net = Network((9,), chain, classes=3, initial_state=start, updates=updates).to(DEVICE)
    for coupling in net.couplings[1:]:
        coupling.synapses.get_parameter("scale").mul_(scaled)
    optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)
    engine = CudaEngine(net, EquilibriumPropagation(30, 3, 0.3), optimizers)
    assert isinstance(engine.relaxer, DenseDelta)
    engine._take_up()
    return engine, engine._clamp(x, engine._input(x))[0]


@pytest.mark.parametrize("updates", UPDATES)
def test_a_deep_network_that_has_come_to_rest_is_left_alone(updates: str):
    """Steps in which nothing is sent are not run: all of them would end in the same states."""
    x = torch.rand(2, 9, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    engine, first = deep(x, 0.4, updates)
    short, long = (settle(engine, first, steps) for steps in (16, 24))
    there = relax(engine.network, x, engine.network.initial(x), 24)
    assert (
        int(short.ran) == int(long.ran) < (16 if updates == "simultaneous" else 10)
        and short.residual.item() == 0.0
    )
    assert all(torch.equal(a, b) for a, b in zip(short.state, long.state, strict=True))
    for found, expected in zip(short.state, there.state, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("updates", "at"), [("simultaneous", 7), ("alternating", 5)])
def test_a_sample_at_rest_waits_for_the_others_unchanged(updates: str, at: int):
    """Whatever else is in its mini-batch, and however many steps the nudged phase comes later."""
    # In number 8 the layer in the middle is the last that sends anything.
    x = 2 * torch.rand(16, 9, generator=torch.Generator().manual_seed(3))[at : at + 2].to(DEVICE)
    engine, first = deep(x, 0.4, updates)
    labels = torch.arange(2, device=DEVICE)

    def phases(samples: slice, steps: int):
        free = settle(engine, first[samples], steps)
        return free, push(engine, first[samples], free, labels[samples])

    together, later = phases(slice(2), 16), phases(slice(2), 17)
    alone = [phases(slice(n, n + 1), 16) for n in range(2)]
    assert len({int(free.ran) for free, _ in alone}) > 1 and int(together[0].ran) < 16
    assert not together[0].carried.delta.any()
    for phase in (0, 1):
        for layer in range(3):
            expected = torch.cat([each[phase].state[layer] for each in alone])
            assert torch.equal(together[phase].state[layer], expected)
            assert torch.equal(later[phase].state[layer], expected)


@pytest.mark.parametrize("updates", UPDATES)
def test_a_wide_layer_is_summed_in_parts(updates: str):
    """More terms than one program takes: gradients agree, and flips reach every copy."""
    pair = []
    for kind in (ReferenceEngine, CudaEngine):
        torch.manual_seed(7)
        chain = [Dense(9, 2100), Dense(2100, 20), Dense(20, 3)]
        net = Network((9,), chain, classes=3, updates=updates).to(DEVICE)
        optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-2)
        engine = kind(net, EquilibriumPropagation(8, 3, 0.3), optimizers)
        x = torch.rand(2, 9, generator=torch.Generator().manual_seed(3)).to(DEVICE)
        engine.train(x, torch.arange(2).to(DEVICE))
        pair.append((net, engine))
    (net, reference), (other, engine) = pair
    assert engine.couplings[1].packed.up.parts == 2
    assert min(engine.collect().flips[1:]) > 0
    for one, two in zip(net.couplings, other.couplings, strict=True):
        momenta = (
            reference.optimizers.bop.momentum(one.signs),
            engine.optimizers.bop.momentum(two.signs),
        )
        assert metrics.cosine({"w": momenta[0]}, {"w": momenta[1]})["w"] > 0.9999
    for fast in engine.couplings[1:]:
        memory = fast.packed.memory.clone()
        fast.refresh()
        assert torch.equal(memory, fast.packed.memory)


@triton.jit
def shift_kernel(largest, shifts):
    tl.store(shifts + tl.program_id(0), dense_delta._shift(tl.load(largest + tl.program_id(0))))


def test_differences_are_shifted_by_as_little_as_fits_into_seven_bits():
    near = [(127 << k) + d for k in range(16) for d in (-1, 0, 1, (1 << k) >> 1, 1 << k)]
    largest = torch.tensor([n for n in near if 0 <= n < 2**22], dtype=torch.int32, device=DEVICE)
    shifts = torch.empty_like(largest)
    shift_kernel[(len(largest),)](largest, shifts)
    for size, shift in zip(largest.tolist(), shifts.tolist(), strict=True):
        fits = [k for k in range(20) if (size + ((1 << k) >> 1)) >> k <= 127]
        assert shift == fits[0], size


@given(
    rows=st.integers(1, 5),
    terms=st.sampled_from([1, 15, 16, 33, 130, 2047, 2048, 2049, 5000]),
    seed=st.integers(0, 99),
)
def test_packed_signs_are_where_their_layout_says(rows: int, terms: int, seed: int):
    signs = torch.randn(rows, terms, generator=torch.Generator().manual_seed(seed)).sign()
    layout = Layout.of(terms)
    packed, k = layout.pack(signs), torch.arange(terms)
    span = 8 * layout.width
    byte, bit = k // span * layout.width + k % layout.width, k % span // layout.width
    assert torch.equal((packed[:, byte].int() >> bit) & 1, (signs > 0).int())
    assert packed.numel() * 8 - signs.numel() == rows * (8 * layout.stride - terms)


def test_flips_reach_every_copy_of_the_signs():
    (_, (net, engine)), *_ = train_both("dense-w", sizes=(3,))
    assert sum(engine.collect().flips) > 0
    kept = [(fast.kernel.clone(), fast.packed.memory.clone()) for fast in engine.couplings[1:]]
    for coupling, fast, (kernel, memory) in zip(
        net.couplings[1:], engine.couplings[1:], kept, strict=True
    ):
        fast.refresh()
        assert torch.equal(kernel.float(), coupling.signs)
        assert torch.equal(memory, fast.packed.memory)


@pytest.mark.parametrize(
    ("batch", "channels", "kernel", "padding", "outputs"),
    [
        (3, 64, 3, 1, 20),
        (30, 64, 3, 2, 20),
        (64, 64, 5, 2, 32),
        (64, 128, 5, 2, 20),
        (128, 64, 2, 3, 64),
        (3, 64, 7, 3, 16),
        (3, 32, 2, 0, 70),
        (64, 5, 3, 2, 130),
        (3, 3, 9, 4, 17),
    ],
)
def test_convolutions_read_all_their_taps(
    batch: int, channels: int, kernel: int, padding: int, outputs: int
):
    """Blocks of terms within one tap, over several, beyond the last; tiles at one position, at a
    few, on several lines; positions that reach beyond the margin, or lie there."""
    torch.manual_seed(0)
    x = torch.randint(0, 2, (batch, channels, 4, 3), device=DEVICE).float()
    signs = torch.randint(0, 2, (outputs, channels, kernel, kernel), device=DEVICE) * 2.0 - 1
    expected = F.conv2d(x.double(), signs.double(), padding=padding).float()
    sums = channels_last(batch, tuple(expected.shape[1:]), torch.float32, DEVICE)
    read = x.half().contiguous(memory_format=torch.channels_last)
    convolve(read, signs.permute(2, 3, 1, 0).half().contiguous(), padding, sums)
    torch.testing.assert_close(sums, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["thin-wa", "thin-w"])
def test_many_mini_batches_at_once_are_the_same_as_one_by_one(kind: str):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(256, (7, 1, 8, 8), generator=generator, dtype=torch.uint8).to(DEVICE)
    labels = torch.randint(4, (7,), generator=generator).to(DEVICE)
    (net, engine), (other, many) = build(kind, CudaEngine), build(kind, CudaEngine)
    for part in zip(x.split(3), labels.split(3), strict=True):
        engine.train(*part)
    many.at_once, many.rows = 3, many.rows.new_zeros(3, many.rows.shape[1])
    many._pinned = torch.empty(2, *many.rows.shape, pin_memory=DEVICE.type == "cuda")
    many.train_many(x, labels, 3)
    assert many.collect() == engine.collect()
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.parametrize("steps", [1, 2, 5, 6])
def test_two_colours_of_layers_relax_as_all_layers_at_once(steps: int):
    torch.manual_seed(7)
    chain = [Dense(64, 33, binary=False), Dense(33, 16, binary=False), Dense(16, 4, binary=False)]
    net = Network((1, 8, 8), chain, classes=4).to(DEVICE)
    learning = EquilibriumPropagation(steps, 4, 0.3)
    engine = CudaEngine(net, learning, assign_optimizers(net, lr_weight=0.1, lr_bias=0.1))
    relaxer = engine.relaxer
    assert isinstance(relaxer, Stepwise)
    engine._take_up()
    x = torch.randint(256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    with torch.no_grad():
        x = net.check(x.to(DEVICE))
        first, _ = engine._clamp(x, engine._input(x))
        by_colour = settle(engine, first, steps)
        state, activity = relaxer.start(5)
        before = state
        for _ in range(steps):
            before = state
            state, activity = relaxer.step(first, state, activity, Target())
    for one, two in zip(by_colour.state, state, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    residual = max(float((a - b).abs().max()) for a, b in zip(state, before, strict=True))
    assert by_colour.residual.item() == pytest.approx(residual, abs=1e-6)


@pytest.mark.parametrize("kind", ["dense-w", "dense-wa", "conv-w"])
def test_a_gamma_of_5e_8_still_accumulates(kind: str):
    """The same gradient twice: its small steps add up, where half precision would lose them."""
    net, engine = build(kind, CudaEngine, noise=0.0, sign="positive", learn_scale=False)
    for group in engine.optimizers.bop.param_groups:
        group.update(gamma=5e-8, tau=1.0)
    for group in engine.optimizers.sgd.param_groups:
        group["lr"] = 0.0
    x = torch.randint(256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()

    def momenta_after(mini_batches: int) -> list[torch.Tensor]:
        for _ in range(mini_batches):
            engine.train(x.to(DEVICE), torch.arange(3, device=DEVICE))
        return [engine.optimizers.bop.momentum(c.signs).double() for c in net.couplings]

    for once, twice in zip(momenta_after(1), momenta_after(1), strict=True):
        assert 0 < once.abs().max() < 1e-6
        torch.testing.assert_close(twice, 2 * once, rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_real_weights_are_trained_too(kind: str):
    states = []
    for engine in (ReferenceEngine, CudaEngine):
        torch.manual_seed(0)
        chain = [Dense(36, 12, binary=False), Dense(12, 4, binary=False)]
        if kind == "conv":
            chain = [
                ConvPool(1, 16, kernel=3, pool=2, binary=False),
                ConvPool(16, 16, kernel=2, padding=1, pool=3, binary=False),
                Dense(16, 4, binary=False),
            ]
        net = Network((1, 6, 6), chain, classes=4).to(DEVICE)
        optimizers = assign_optimizers(net, lr_weight=0.1, lr_bias=0.1)
        subject = engine(net, EquilibriumPropagation(6, 4, 0.3), optimizers)
        for seed in range(2):
            x = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            subject.train(x, torch.arange(4).to(DEVICE))
        states.append([p.detach().clone() for p in net.parameters()])
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", ["thin-w", "conv-moving-w"])
@pytest.mark.parametrize(("steps", "pulls_at"), [(6, "state"), (3, "drive")])
def test_backpropagation_through_time_agrees(kind: str, steps: int, pulls_at: str):
    """Whether some of the 6 steps run before those that are differentiated, or none."""
    pair = []
    for engine in (ReferenceEngine, ThroughTimeEngine):
        net, built = build(kind, CudaEngine)
        learning = BackpropThroughTime(6, steps, pulls_at=pulls_at)
        subject = engine(net, learning, built.optimizers)
        generator = torch.Generator().manual_seed(3)
        for size in (3, 3, 2):
            x = torch.randint(256, (size, 1, 8, 8), generator=generator, dtype=torch.uint8)
            subject.train(x.to(DEVICE), (torch.arange(size) % 4).to(DEVICE))
        found = subject.evaluate(x.to(DEVICE), (torch.arange(size) % 4).to(DEVICE))
        pair.append((net, subject.collect(), found))
    (net, tally, seen), (other, found, again) = pair
    assert found.flips == tally.flips and found.wrong == tally.wrong
    assert found.loss == pytest.approx(tally.loss, rel=1e-3)
    assert again.loss == pytest.approx(seen.loss, rel=1e-3)
    assert found.residual == pytest.approx(tally.residual, abs=1e-3)
    assert 3 * steps <= found.free_steps <= tally.free_steps
    assert (found.samples, found.batches, found.nudged_steps) == (8, 3, 0)
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-4, msg=name)


def chain_of(kind: str) -> Sequence[Dense | ConvPool]:
    """Couplings on images of 1 x 8 x 8, up to 4 outputs."""
    binary = {"binary": not kind.endswith("real")}
    learnt = {**binary, "learn_scale": binary["binary"]}
    if kind.startswith("conv"):
        return [
            ConvPool(1, 5, kernel=3, padding=1, pool=2, **learnt),
            ConvPool(5, 6, kernel=3, padding=1, pool=2, **learnt),
            Dense(4 * 6, 4, **learnt),
        ]
    if kind == "narrowing":  # three convolutions: without a pool, with one that leaves a rest
        return [
            ConvPool(1, 3, kernel=3, pool=1, **learnt),
            ConvPool(3, 4, kernel=2, padding=1, pool=3, **learnt),
            ConvPool(4, 5, kernel=2, pool=1, bias=False, **learnt),
            Dense(5, 4, **learnt),
        ]
    widths = {"single": [], "thin": [9], "deep": [11, 7], "deeper": [9, 8, 7]}[kind.split("-")[0]]
    sizes = [64, *widths, 4]
    return [
        Dense(below, above, bias=n != 2, **learnt)
        for n, (below, above) in enumerate(pairwise(sizes))
    ]


@pytest.mark.parametrize(
    ("steps", "pulls_at", "start"),
    [
        (1, "state", "inside"),
        (2, "state", "inside"),
        (2, "drive", "on the clamp"),
        (5, "state", "on the clamp"),
        (5, "drive", "inside"),
    ],
)
@pytest.mark.parametrize(
    "kind",
    ["single", "thin", "deep", "deep-real", "deeper", "conv", "conv-real", "narrowing"],
)
def test_errors_travel_back_as_autograd_says(
    kind: str, steps: int, pulls_at: str, start: str, monkeypatch: pytest.MonkeyPatch
):
    """Every gradient from the same state, in float32: tensor cores would let pools decide anew."""
    monkeypatch.setattr(through_time, "tensor_cores", lambda allowed: tensor_cores(False))
    generator = torch.Generator().manual_seed(5)
    net = Network((1, 8, 8), chain_of(kind), classes=4).to(DEVICE)
    learning = BackpropThroughTime(9, steps, pulls_at=pulls_at)
    real = {"lr_weight": 0.1} if kind.endswith("real") else {"gamma": 1e-2, "tau": 1e-3}
    learnt = {} if kind.endswith("real") else {"lr_scale": 1e-4}
    engine = ThroughTimeEngine(
        net, learning, assign_optimizers(net, lr_bias=1e-2, **real, **learnt)
    )
    x = torch.randint(256, (5, 1, 8, 8), generator=generator, dtype=torch.uint8).to(DEVICE)
    x = x / 255 if kind.startswith("deep") else x
    labels = torch.arange(5, device=DEVICE) % 4
    state = [torch.rand(s.shape, generator=generator).to(DEVICE) for s in net.initial(x)]
    with torch.no_grad():
        for coupling in net.couplings:
            if coupling.bias is not None:
                coupling.bias.add_(0.4)
            # The first drive comes from the free phase, which reads weights of 11 bits.
            coupling.synapses.kernel.copy_(coupling.synapses.kernel.half())
        if start == "on the clamp":
            # Nothing is sent at first, so that all drives but the first are 0 or 1 exactly.
            state = [torch.zeros_like(s) for s in state]
            for coupling in net.couplings[1:]:
                if coupling.bias is not None:
                    coupling.bias.copy_(torch.arange(len(coupling.bias)) % 2)
        engine._take_up()
        numbers = engine._input(x)
        first, switches = engine._clamp(x, numbers)
        target = engine.relaxer.target(labels)
        outputs, residual = engine.adjoint.differentiate(x, numbers, first, switches, state, target)
    found = {name: p.grad for name, p in net.named_parameters()}
    with tensor_cores(False):
        last = learning.differentiate(net, x, state, labels)
    torch.testing.assert_close(outputs, last.state[-1], rtol=0, atol=1e-6)
    torch.testing.assert_close(residual, last.residuals[-1:], rtol=0, atol=1e-6)
    for name, p in net.named_parameters():
        assert p.grad.any() or start != "inside" or len(net.couplings) > steps, name
        least = 1e-5 * max(float(p.grad.abs().max()), 1e-3)
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=least, msg=name)


@pytest.mark.parametrize("dynamics", ["prototypical", "energy"])
def test_backpropagation_through_time_says_how_precise_it_is(dynamics: str):
    """Dynamics without an adjoint of their own are left to autograd."""
    pair = []
    for engine in (ReferenceEngine, ThroughTimeEngine):
        torch.manual_seed(7)
        net = Network((1, 8, 8), chain_of("thin"), HardSigmoid(), dynamics, classes=4).to(DEVICE)
        optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2, lr_scale=1e-4)
        subject = engine(net, BackpropThroughTime(6, 3), optimizers)
        x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3)).to(DEVICE)
        subject.train(x, torch.arange(5, device=DEVICE) % 4)
        pair.append((net, subject))
    (net, _), (other, subject) = pair
    precisions = {
        "prototypical": "float32, last steps TF32",
        "energy": "float16, last steps float32",
    }
    assert subject.precision == precisions[dynamics]
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        least = 1e-2 * float(p.grad.abs().max())
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-2, atol=least, msg=name)


def test_digits_of_scales_are_exact():
    gain = torch.empty(200).uniform_(0.011, 0.6, generator=torch.Generator().manual_seed(0))
    unit, digits = split_digits(gain)
    total = torch.zeros(200, dtype=torch.float64)
    for digit in digits:
        assert digit.max() < 1024 and torch.equal(digit, digit.round())
        total = total * 1024 + digit
    assert torch.equal((total * unit).float(), gain)


@pytest.mark.parametrize(
    ("learning", "options", "reason"),
    [
        (EquilibriumPropagation(4, 2, 0.3, tolerance=1e-3), {}, "tolerance=0.001"),
        (
            EquilibriumPropagation(4, 2, 0.3),
            {"dynamics": "energy", "dt": 0.25},
            "dt=0.25: allowed is 0.5",
        ),
        (BackpropThroughTime(4, 2), {"updates": "alternating"}, "layers that move at once"),
        (EquilibriumPropagation(4, 2, 0.3), {"cost": "cross_entropy"}, "cross_entropy"),
        (EquilibriumPropagation(4, 2, 0.3, margin=0.1), {}, "margin where neurons are HardSigmoid"),
        (
            EquilibriumPropagation(4, 2, 0.3, homeostasis=Homeostasis(0.1, 0.1)),
            {},
            "does not let biases follow activity",
        ),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_reason(learning, options, reason: str):
    net = Network((4,), [Dense(4, 6), Dense(6, 3)], classes=3, **options).to(DEVICE)
    optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)
    with pytest.raises(ValueError, match=f"engine 'cuda'.*{reason}"):
        CudaEngine(net, learning, optimizers)
