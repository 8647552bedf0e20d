"""Convolutions that have to be exact: window by window, on any device."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.grad import conv2d_weight

from binep import ConvPool
from binep.core.convolution import correlate_by_windows, down_by_windows, up_by_windows
from binep.engines.torch.engine import tensor_cores


@given(
    side=st.integers(1, 4),
    padding=st.integers(0, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    image=st.tuples(st.integers(1, 3), st.integers(4, 6), st.integers(4, 7)),
    seed=st.integers(0, 99),
)
def test_windows_make_the_faces_of_a_convolution(side, padding, channels, image, seed: int):
    padding = min(padding, side - 1)
    generator = torch.Generator().manual_seed(seed)
    (below, above), (batch, *size) = channels, image

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-9, 10, shape, generator=generator).double()

    x, kernel = integers(batch, below, *size), integers(above, below, side, side)
    maps = F.conv2d(x, kernel, padding=padding)
    assert torch.equal(up_by_windows(x, kernel, padding), maps)
    expected = F.conv_transpose2d(maps, kernel, padding=padding)
    assert torch.equal(down_by_windows(maps, kernel, padding), expected)
    expected = conv2d_weight(x, kernel.shape, maps, padding=padding)
    assert torch.equal(correlate_by_windows(x, kernel.shape, maps, padding), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuDNN is on a GPU")
@pytest.mark.parametrize("allowed", [False, True], ids=["float32", "TF32"])
@pytest.mark.parametrize(
    ("below", "above", "kernel", "pool"),
    [(33, 3, 3, 2), (3, 33, 3, 1), (64, 64, 3, 2), (1, 33, 1, 1), (32, 64, 5, 2), (65, 9, 4, 3)],
)
def test_a_gpu_adds_up_integers_exactly(below, above, kernel, pool, allowed: bool):
    """Of 33 to 3 channels cuDNN would take a transform; 1 / 255 would be rounded twice."""
    generator = torch.Generator().manual_seed(0)
    coupling = ConvPool(below, above, kernel=kernel, padding=kernel // 2, pool=pool)
    for kind in ("bits", "pixels"):
        x = torch.randint(256, (64, below, 10, 11), generator=generator, dtype=torch.uint8)
        x = x > 127 if kind == "bits" else x
        with torch.no_grad():
            drive, switches = coupling.cpu().up(x)
            bits = torch.rand(drive.shape, generator=generator) < 0.5
            down = coupling.down(bits, switches, x.shape)
            contrast = coupling.correlate(x, bits, switches)
            with tensor_cores(allowed):
                x, bits = x.cuda(), bits.cuda()
                found, places = coupling.cuda().up(x)
                assert torch.equal(found.cpu(), drive)
                assert torch.equal(coupling.down(bits, places, x.shape).cpu(), down)
                assert torch.equal(coupling.correlate(x, bits, places).cpu(), contrast)
