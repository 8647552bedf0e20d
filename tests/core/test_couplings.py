"""Couplings: three faces of one bilinear form, exact sums, and what does not connect."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from binep import ConvPool, Dense
from binep.core.couplings import Coupling


def inner(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())


def assert_bilinear(coupling: Coupling, x: Tensor, y_like: Tensor, switches: Tensor | None):
    """`<up(x), y> = <x, down(y)> = <W, correlate(x, y)>` with the switches of up(x) frozen."""
    y = torch.randn_like(y_like)
    up = inner(y_like, y)
    down = inner(x, coupling.down(y, switches, x.shape))
    weight = inner(coupling.weight, coupling.correlate(x, y, switches))
    # The three differ by float64's rounding alone, relative to the size of the terms summed.
    size = inner(y_like.abs(), y.abs())
    assert abs(up - down) <= 1e-10 * size
    assert abs(up - weight) <= 1e-10 * size


@settings(max_examples=60, deadline=None)
@given(
    below=st.integers(1, 20),
    above=st.integers(1, 20),
    batch=st.integers(1, 5),
    binary=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_dense_faces_agree(below: int, above: int, batch: int, binary: bool, seed: int):
    torch.manual_seed(seed)
    coupling = Dense(below, above, binary=binary, bias=False).double()
    x = torch.randn(batch, below, dtype=torch.float64)
    with torch.no_grad():
        assert_bilinear(coupling, x, *coupling.up(x))


@settings(max_examples=120, deadline=None)
@given(
    below=st.integers(1, 4),
    above=st.integers(1, 4),
    batch=st.integers(1, 3),
    kernel=st.integers(1, 6),
    padding=st.integers(0, 4),
    pool=st.integers(1, 4),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    binary=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_conv_faces_agree(
    below: int,
    above: int,
    batch: int,
    kernel: int,
    padding: int,
    pool: int,
    height: int,
    width: int,
    binary: bool,
    seed: int,
):
    torch.manual_seed(seed)
    coupling = ConvPool(
        below, above, kernel=kernel, padding=padding, pool=pool, binary=binary, bias=False
    ).double()
    smallest = kernel + pool - 1 - 2 * padding
    if min(height, width) < smallest:
        with pytest.raises(ValueError, match=f"at least {smallest}"):
            coupling.above_shape((below, height, width))
        return
    x = torch.randn(batch, below, height, width, dtype=torch.float64)
    with torch.no_grad():
        drive, switches = coupling.up(x)
        assert drive.shape[1:] == coupling.above_shape((below, height, width))
        assert_bilinear(coupling, x, drive, switches)


def test_identity_needs_the_right_switches():
    """The property tests can fail: with the switches of another input the faces differ."""
    torch.manual_seed(0)
    coupling = ConvPool(1, 2, kernel=3, padding=1, pool=2, bias=False).double()
    x, other = torch.randn(2, 3, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad(), pytest.raises(AssertionError):
        assert_bilinear(coupling, x, coupling.up(x)[0], coupling.up(other)[1])


def test_dense_by_hand():
    coupling = Dense(2, 1)
    coupling.signs.data = torch.tensor([[1.0, -1.0]])
    coupling.scale.data.fill_(0.5)
    coupling.bias.data.fill_(0.25)
    drive, switches = coupling.up(torch.tensor([[3.0, 1.0]]))
    assert (drive.item(), switches) == (0.5 * (3 - 1) + 0.25, None)
    assert coupling.down(torch.tensor([[4.0]]), None, (2,)).tolist() == [[2, -2]]
    correlation = coupling.correlate(torch.tensor([[3.0, 1.0]]), torch.tensor([[4.0]]))
    assert correlation.tolist() == [[12, 4]]


def test_pool_takes_the_first_of_equals_in_row_major_order():
    coupling = ConvPool(1, 1, kernel=1, pool=2, bias=False)
    coupling.signs.data.fill_(1)
    below = torch.tensor([[0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
    _, switches = coupling.up(below[None, None])
    assert switches is not None
    # Four pools of the 4 x 4 map: winners (0,1), (0,2) by tie, (3,1), (3,2).
    assert switches.flatten().tolist() == [1, 2, 13, 14]


def test_positions_that_do_not_fill_a_pool_are_dropped():
    coupling = ConvPool(1, 1, kernel=1, pool=2, bias=False)
    drive, switches = coupling.up(torch.rand(1, 1, 5, 7))
    assert drive.shape == (1, 1, 2, 3)
    down = coupling.down(drive, switches, (1, 5, 7))
    assert down.shape == (1, 1, 5, 7)
    assert not down[..., 4, :].any() and not down[..., 6].any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), below=st.integers(1, 900), above=st.integers(1, 40))
def test_sums_over_bits_are_exact_integers(seed: int, below: int, above: int):
    generator = torch.Generator().manual_seed(seed)
    coupling = Dense(below, above, bias=False, generator=generator)
    bits = torch.rand(3, below, generator=generator) < 0.5
    sums = bits.long() @ coupling.signs.long().T
    with torch.no_grad():
        assert torch.equal(coupling.up(bits)[0], coupling.scale * sums.float())
        back = torch.rand(3, above, generator=generator) < 0.5
        sums = back.long() @ coupling.signs.long()
        assert torch.equal(coupling.down(back, None, (below,)), coupling.scale * sums.float())


def test_pixels_stay_integers_until_they_are_scaled():
    generator = torch.Generator().manual_seed(3)
    coupling = Dense(784, 20, generator=generator)
    pixels = torch.randint(256, (4, 784), generator=generator, dtype=torch.uint8)
    sums = (pixels.long() @ coupling.signs.long().T).float()
    assert coupling.bias is not None
    with torch.no_grad():
        assert torch.equal(coupling.up(pixels)[0], coupling.scale / 255 * sums + coupling.bias)
        torch.testing.assert_close(coupling.up(pixels)[0], coupling.up(pixels / 255)[0])


def test_conv_down_of_bits_does_not_depend_on_the_order_of_channels():
    """Channels have scales of their own, so the sum is not an integer: it must still be exact."""
    torch.manual_seed(0)
    coupling = ConvPool(3, 64, kernel=5, padding=2, bias=False)
    bits = torch.rand(2, 64, 9, 9) < 0.5
    order = torch.randperm(64)
    shuffled = ConvPool(3, 64, kernel=5, padding=2, bias=False)
    shuffled.signs.data, shuffled.scale.data = coupling.signs[order], coupling.scale[order]
    with torch.no_grad():
        straight = coupling.down(bits, None, (3, 9, 9))
        assert torch.equal(straight, shuffled.down(bits[:, order], None, (3, 9, 9)))


def test_below_shape_may_carry_the_batch():
    conv = ConvPool(1, 2, kernel=3, padding=1, pool=2)
    drive, switches = conv.up(torch.rand(1, 1, 6, 6))
    for shape in ((1, 6, 6), (1, 1, 6, 6)):
        assert conv.down(drive, switches, shape).shape == (1, 1, 6, 6)
    dense = Dense(36, 2)
    for shape in ((1, 6, 6), (1, 1, 6, 6)):
        assert dense.down(torch.rand(1, 2), None, shape).shape == (1, 1, 6, 6)
    for shape in ((36,), (1, 36)):
        assert dense.down(torch.rand(1, 2), None, shape).shape == (1, 36)


def test_parameters_have_the_documented_names_and_shapes():
    dense, conv = Dense(5, 3), ConvPool(2, 4, kernel=3)
    assert dense.signs.shape == (3, 5) and dense.scale.shape == () and dense.bias is not None
    assert conv.signs.shape == (4, 2, 3, 3) and conv.scale.shape == (4,)
    assert all(isinstance(p, torch.nn.Parameter) for p in (dense.signs, conv.scale, conv.bias))
    assert Dense(5, 3, bias=False).bias is None
    real = Dense(5, 3, binary=False)
    assert [name for name, _ in real.named_parameters()] == ["bias", "synapses.weight"]
    assert isinstance(real.weight, torch.nn.Parameter)
    with pytest.raises(ValueError, match="real weights"):
        _ = real.signs


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dense(0, 3), "below=0"),
        (lambda: Dense(3, -1), "above=-1"),
        (lambda: ConvPool(1, 2, kernel=0), "kernel=0"),
        (lambda: ConvPool(1, 2, kernel=3, pool=0), "pool=0"),
        (lambda: ConvPool(1, 2, kernel=3, padding=-1), "padding=-1"),
        (lambda: Dense(3, 3, binary=False, learn_scale=True), "learn_scale"),
        (lambda: Dense(3, 3).above_shape((4,)), r"\(4,\).*allowed: 3"),
        (lambda: ConvPool(3, 2, kernel=3).above_shape((1, 8, 8)), r"allowed: \(3, height, width\)"),
        (
            lambda: ConvPool(1, 2, kernel=1, pool=2).down(torch.rand(1, 2, 1, 1), None, (2, 2)),
            "switches",
        ),
    ],
)
def test_impossible_couplings_are_refused(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()
