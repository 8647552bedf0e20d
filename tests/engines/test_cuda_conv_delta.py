"""Convolutional networks that send differences on the GPU (without one in Triton's interpreter)."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import triton
import triton.language as tl

from binep import ConvPool, Dense, Network, relax
from binep.core import metrics
from binep.core.network import UPDATES
from binep.core.plan import PhasePlan
from binep.core.relaxation import Nudge, step
from binep.engines.cuda.layout import lay_out
from binep.engines.cuda.relaxers import conv_delta
from binep.engines.cuda.relaxers.base import Phase, in_order
from binep.engines.cuda.relaxers.conv_delta import ConvDelta, Convolutions, Moving, Neurons
from binep.engines.torch.engine import tensor_cores

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FREE = PhasePlan(24)
BETA = 0.3

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


def three_convolutions(updates: str = "simultaneous") -> Network:
    """Two that leave a rest when pooled, one without biases; its scales let it rest soon."""
    torch.manual_seed(7)
    chain = [
        ConvPool(1, 32, kernel=3, padding=1, pool=1),
        ConvPool(32, 64, kernel=2, padding=0, pool=2),
        ConvPool(64, 32, kernel=2, padding=1, pool=2, bias=False),
        Dense(32, 4),
    ]
    net = Network((1, 6, 6), chain, classes=4, initial_state=0.5, updates=updates).to(DEVICE)
    for coupling in net.couplings[1:]:
        coupling.synapses.get_parameter("scale").mul_(0.6)
    return net


def relaxer_of(net: Network) -> ConvDelta:
    copies = ConvDelta.copies(net)
    couplings = lay_out(net, copies)
    for fast in couplings:
        fast.begin()
        fast.refresh()
    return ConvDelta(net, couplings, torch.ones(1, device=DEVICE), copies.first)


def drive(net: Network, x: torch.Tensor) -> torch.Tensor:
    return in_order(net.clamp(x).drive)


def nudged(relaxer: ConvDelta, first: torch.Tensor, free: Phase, beta: float = BETA) -> Phase:
    labels = torch.arange(len(first), device=DEVICE)
    return relaxer.relax(first, PhasePlan(5, 0, beta), free, labels)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(3)).to(DEVICE)


@pytest.fixture(scope="module")
def rested(images: torch.Tensor) -> tuple[ConvDelta, torch.Tensor, Phase]:
    """A relaxer, the drive of the images, and where their free phase ends."""
    with torch.no_grad():
        net = three_convolutions()
        relaxer, first = relaxer_of(net), drive(net, images)
        return relaxer, first, relaxer.relax(first, FREE, None, None)


@pytest.mark.parametrize("updates", UPDATES)
def test_samples_move_as_in_the_reference(
    updates: str, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
):
    """In float16; float8 may decide otherwise between places of a pool that are nearly equal."""
    monkeypatch.setattr(conv_delta, "UNIT", 2.0**-14)  # rests near enough for these bounds
    net = three_convolutions(updates)
    relaxer, first, labels = relaxer_of(net), drive(net, images), torch.arange(3, device=DEVICE)
    relaxer.eight = None
    free = relaxer.relax(first, FREE, None, None)
    pushed = nudged(relaxer, first, free)
    there = relax(net, images, net.initial(images), FREE.steps)
    wanted = relax(net, images, there.state, 5, Nudge(net.target(labels), BETA))
    ran = free.ran.tolist()
    assert len(set(ran)) > 1 and max(ran) < FREE.steps and not free.residual.any()
    for n, (found, expected) in enumerate(zip(free.state, there.state, strict=True)):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
        change, expected_change = pushed.state[n] - found, wanted.state[n] - expected
        torch.testing.assert_close(change, expected_change, rtol=0, atol=5e-5)
        assert expected_change.abs().max() > 4e-4
    # Differences are rounded, but what was sent is known exactly.
    for now in (free.carried, pushed.carried):
        maps = convolved(relaxer, relaxer.half.ups, now.sent)
        down = convolved(relaxer, relaxer.half.downs, now.fields)
        torch.testing.assert_close(now.maps, maps, rtol=0, atol=1e-5)
        torch.testing.assert_close(now.down, down, rtol=0, atol=1e-6)
    # Of two places that are as good as equal either may win.
    for n, places in relaxer.switches(pushed).items():
        assert (places != places_in_pools(net, n, wanted.switches[n])).float().mean() < 0.02


def places_in_pools(net: Network, n: int, switches: torch.Tensor) -> torch.Tensor:
    """The reference's winners, which are numbers within the maps."""
    coupling = net.couplings[n]
    assert isinstance(coupling, ConvPool)
    width = net.layer_shapes[n - 1][2] + 2 * coupling.padding - coupling.kernel + 1
    row, column = switches // width % coupling.pool, switches % width % coupling.pool
    return (row * coupling.pool + column).to(torch.uint8)


def convolved(relaxer: ConvDelta, ways: Sequence[Convolutions], read: torch.Tensor) -> torch.Tensor:
    """What the convolutions of a direction make of all that they read, side by side."""
    up = ways[0].tasks[0] in [task for way in relaxer.half.ups for task in way.tasks]
    inner = {fast.room.at: fast for fast in relaxer.inner}
    total = torch.zeros(len(read), relaxer.map_total if up else relaxer.total, device=DEVICE)
    for task in (task for way in ways for task in way.tasks):
        fast = inner[task.weights]
        shape = (task.height, task.width, task.channels)
        x = read[:, task.read :][:, : math.prod(shape)].unflatten(1, shape).permute(0, 3, 1, 2)
        kernel, padding = fast.coupling.synapses.kernel, fast.coupling.padding
        with tensor_cores(False):
            found = (F.conv2d if up else F.conv_transpose2d)(x, kernel, padding=padding)
        total[:, task.target :][:, : found[0].numel()] = found.permute(0, 2, 3, 1).flatten(1)
    return total


@pytest.mark.parametrize(
    ("seed", "updates"),
    [
        pytest.param(3, "simultaneous", marks=pytest.mark.slow),
        (4, "simultaneous"),
        (4, "alternating"),
    ],
)
def test_differences_in_float8_come_to_a_rest_of_the_reference(
    seed: int, updates: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conv_delta, "UNIT", 2.0**-14)
    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    net = three_convolutions(updates)
    relaxer = relaxer_of(net)
    assert relaxer.real_precision == "float8 differences, float32"
    free = relaxer.relax(drive(net, x), FREE, None, None)
    assert free.ran.max() < FREE.steps and not free.residual.any()
    after = step(net, net.clamp(x), [state.contiguous() for state in free.state])
    there = relax(net, x, net.initial(x), FREE.steps)
    for found, moved, expected in zip(free.state, after, there.state, strict=True):
        torch.testing.assert_close(found, moved, rtol=0, atol=1e-4)
        # Not always the rest to which the reference comes, but one close by.
        assert (found - expected).abs().mean() < 2e-3 < expected.std()
    # What was sent is known exactly, however it was rounded.
    now = free.carried
    for way, read, sums in (
        (relaxer.half.ups, now.sent, now.maps),
        (relaxer.half.downs, now.fields, now.down),
    ):
        # Tensor cores add up float8 in some 14 bits, a block at a time.
        expected = convolved(relaxer, way, read)
        torch.testing.assert_close(sums, expected, rtol=0, atol=1e-3 * float(expected.std()))


@pytest.mark.parametrize(("channels", "binary"), [(32, False), (16, True)])
def test_real_weights_and_few_channels_send_in_float16(channels: int, binary: bool):
    chain = [
        ConvPool(1, channels, kernel=3, binary=binary),
        ConvPool(channels, 32, kernel=2, binary=binary),
        Dense(9 * 32, 4, binary=binary),
    ]
    net = Network((1, 6, 6), chain, classes=4).to(DEVICE)
    assert relaxer_of(net).real_precision == "float16 differences, float32"


def test_from_a_rest_nothing_moves_but_what_a_nudge_pushes(
    rested: tuple[ConvDelta, torch.Tensor, Phase],
):
    """What the free phase held back stays back, although less would be sent now."""
    relaxer, first, free = rested
    for state, sent in zip(free.state[:-1], free.activity[:-1], strict=True):
        held = (relaxer.network.neuron(state) - sent).abs().max()
        assert conv_delta.FINEST.value < held < conv_delta.UNIT
    unmoved = nudged(relaxer, first, free, beta=1e-30)
    assert all(map(torch.equal, unmoved.activity, free.activity))
    # A small nudge has the effect of a larger one, only smaller, down to the first layer.
    changes = []
    for beta in (0.3, 0.03):
        pushed = nudged(relaxer, first, free, beta)
        changes.append((pushed.activity[0] - free.activity[0]) / beta)
    assert metrics.cosine({"": changes[0]}, {"": changes[1]})[""] > 0.9


@pytest.mark.slow
def test_how_a_sample_moves_does_not_depend_on_the_others(
    rested: tuple[ConvDelta, torch.Tensor, Phase], monkeypatch: pytest.MonkeyPatch
):
    """Alone or not, its sums in one part or in several; once it rests it stays."""
    relaxer, first, together = rested
    later = relaxer.relax(first, PhasePlan(27), None, None)
    alone = relaxer.relax(first[:1], FREE, None, None)
    monkeypatch.setattr(conv_delta, "TERMS_UP", 80)
    monkeypatch.setattr(conv_delta, "TERMS_DOWN", 80)
    monkeypatch.setattr(conv_delta, "TERMS_FEW", 60)
    relaxer = relaxer_of(three_convolutions())
    (downs,) = relaxer.half.downs
    assert max(task.split_few for task in downs.tasks) > 3
    assert max(task.split for task in downs.tasks) > 3
    in_parts = relaxer.relax(first[:2], FREE, None, None)
    assert torch.equal(together.ran, later.ran) and alone.ran[0] == together.ran[0]
    for n, state in enumerate(together.state):
        assert torch.equal(state, later.state[n])
        torch.testing.assert_close(state[:1], alone.state[n], rtol=0, atol=1e-6)
        torch.testing.assert_close(state[:2], in_parts.state[n], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float8"])
@pytest.mark.parametrize("terms", [30, 10_000])
@pytest.mark.parametrize("moves", [1, 2, 4])
def test_sums_follow_the_differences_of_samples_that_move(
    monkeypatch: pytest.MonkeyPatch, terms: int, moves: int, dtype: str
):
    """Exactly, twice in a row, in one part or in several; those of other samples stay."""
    monkeypatch.setattr(conv_delta, "TERMS_UP", 2 * terms)
    monkeypatch.setattr(conv_delta, "TERMS_DOWN", 2 * terms)
    monkeypatch.setattr(conv_delta, "TERMS_FEW", terms)
    relaxer = relaxer_of(three_convolutions())
    assert relaxer.eight is not None
    directions = relaxer.half if dtype == "float16" else relaxer.eight
    directions.refresh()
    order = torch.tensor([2, 0, 1, 3], dtype=torch.int32, device=DEVICE)
    moving = Moving(order, order.new_full((1,), moves), torch.zeros_like(order), 4)
    generator = torch.Generator().manual_seed(0)
    for way, wide, summed in (
        (directions.ups[0], relaxer.total, relaxer.map_total),
        (directions.downs[0], relaxer.map_total, relaxer.total),
    ):
        assert (max(task.split_few for task in way.tasks) > 3) == (terms == 30)
        assert (max(task.split for task in way.tasks) > 1) == (terms == 30)
        read = torch.randint(-3, 4, (4, wide), generator=generator).to(
            DEVICE, directions.precision.dtype
        )
        sums, parts = torch.zeros(4, summed, device=DEVICE), way.parts(4)
        for _ in range(2):
            way.launch(read, sums, moving, parts, relaxer.neuron, Neurons())
        assert not parts.arrived.any()
        expected = 2 * convolved(relaxer, [way], read.float()) / way.spreads[0]
        expected[order[moves:].long()] = 0
        assert torch.equal(sums, expected)


def test_more_samples_than_kernels_can_count_are_refused(
    rested: tuple[ConvDelta, torch.Tensor, Phase], monkeypatch: pytest.MonkeyPatch
):
    relaxer, first, _ = rested
    positions = max(task.rows * task.columns for task in relaxer.half.ups[0].tasks)
    places = max(relaxer.total, relaxer.map_total)
    for name, each in (("PLACES", places), ("POSITIONS_IN_ALL", max(positions, 6 * 6))):
        with monkeypatch.context() as patched:
            patched.setattr(conv_delta, name, 2 * each)
            with pytest.raises(ValueError, match="3 samples at once.*up to 2"):
                relaxer.relax(first, PhasePlan(1), None, None)


@triton.jit
def quotient_kernel(values, divisor, found):
    i = tl.arange(0, 4096)
    tl.store(found + i, conv_delta.quotient(tl.load(values + i), tl.load(divisor)))


@pytest.mark.parametrize("divisor", [1, 3, 41, 49, 55, 64, 500])
def test_rows_of_a_tile_are_found_as_by_integer_division(divisor: int):
    """Around multiples, where rounding could lead to the next one, up to the most allowed."""
    most = conv_delta.POSITIONS_IN_ALL // divisor
    multiples = torch.linspace(1, most, 2048, dtype=torch.float64).int() * divisor
    values = torch.cat([multiples - 1, multiples]).to(DEVICE)
    found = torch.empty_like(values)
    quotient_kernel[(1,)](values, values.new_full((1,), divisor), found)
    assert torch.equal(found, values // divisor)


@triton.jit
def follow_kernel(values, after, differences):
    i = tl.arange(0, 4096)
    value = tl.load(values + i)
    now, sent = conv_delta.follow(value, 0.0 * value, 0.0, 256.0, differences.dtype.element_ty)
    tl.store(after + i, now)
    tl.store(differences + i, sent)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16])
def test_differences_are_rounded_as_their_dtype_is_and_known_exactly(dtype: torch.dtype):
    """From 0 and what is too small to be sent to what is too large to be sent at once."""
    generator = torch.Generator().manual_seed(0)
    values = torch.exp2(18 * torch.rand(4096, generator=generator) - 16)
    values = values * torch.randn(4096, generator=generator).sign()
    values[0] = 0.0
    after, differences = torch.empty(4096, device=DEVICE), torch.empty(4096).to(DEVICE, dtype)
    follow_kernel[(1,)](values.to(DEVICE), after, differences)
    spread = values * 256
    largest = torch.finfo(dtype).max
    assert spread.abs().min() == 0 and (dtype == torch.float16 or spread.abs().max() > largest)
    assert torch.equal(differences.cpu().float(), spread.clamp(-largest, largest).to(dtype).float())
    assert torch.equal(after.cpu(), differences.cpu().float() / 256)
