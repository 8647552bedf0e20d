import math

import pytest
import torch

from binep.core.weights import BinaryWeight, RealWeight, default_draw, sign
from binep.training import recipe as recipes
from binep.training.trainer import random_streams


def test_sign_is_never_zero():
    values = torch.tensor([-1.5, -0.0, 0.0, 1e-30, -1e-30])
    assert sign(values).tolist() == [-1, 1, 1, 1, -1]


def test_draw_is_the_uniform_one_of_torch():
    fan_in = 400
    draw = default_draw((300, fan_in), fan_in, torch.Generator().manual_seed(0))
    bound = 1 / math.sqrt(fan_in)
    assert draw.abs().max() <= bound
    # 120,000 uniform draws: mean and standard deviation within 1 % of the range.
    assert abs(draw.mean()) < 0.01 * bound
    assert abs(draw.std() - bound / math.sqrt(3)) < 0.01 * bound


def test_dense_scale_is_the_mean_magnitude_of_the_draw():
    draw = torch.tensor([[0.5, -0.25], [0.0, -0.25]])
    weight = BinaryWeight(draw, channelwise=False)
    assert weight.scale.shape == ()
    assert weight.scale.item() == 0.25
    assert weight.signs.tolist() == [[1, -1], [1, -1]]
    assert torch.equal(weight.full, 0.25 * weight.signs)


def test_conv_scale_is_one_a_channel_and_is_not_rounded():
    draw = torch.empty(3, 2, 5, 5).uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(1))
    weight = BinaryWeight(draw, channelwise=True)
    assert weight.scale.shape == (3,)
    torch.testing.assert_close(weight.scale.detach(), draw.abs().mean((1, 2, 3)))
    assert not torch.equal(weight.scale, (weight.scale * 1e4).round() / 1e4)
    for channel in range(3):
        assert torch.equal(weight.full[channel], weight.scale[channel] * weight.signs[channel])


def shapes_of_all_recipes() -> list[tuple[int, ...]]:
    with torch.device("meta"):  # only shapes are asked for
        networks = [recipes.load(name).build_network() for name in recipes.names()]
    couplings = [coupling for network in networks for coupling in network.couplings]
    shapes = {tuple(coupling.signs.shape) for coupling in couplings if coupling.binary}
    # 10 million draws a shape are enough to wait for.
    return sorted(shape for shape in shapes if math.prod(shape) <= 10_000_000)


@pytest.mark.parametrize("shape", shapes_of_all_recipes(), ids=str)
def test_initial_scales_do_not_depend_on_the_number_of_threads(shape, on_threads):
    draw = default_draw(shape, math.prod(shape[1:]), random_streams(1)["init"])
    scales = []
    for threads in (1, 2, 3):
        on_threads(threads)
        scales.append(BinaryWeight(draw, channelwise=len(shape) > 2).scale.detach())
    assert torch.equal(scales[0], scales[1]) and torch.equal(scales[0], scales[2])


def test_an_initial_scale_is_rounded_once():
    for seed in range(6):
        draw = default_draw((1024, 256), 256, torch.Generator().manual_seed(seed))
        exact = math.fsum(draw.abs().flatten().tolist()) / draw.numel()
        assert BinaryWeight(draw, channelwise=False).scale == torch.tensor(exact)


def test_only_a_learnt_scale_asks_for_training():
    draw = torch.randn(2, 2)
    assert not BinaryWeight(draw, channelwise=False).scale.requires_grad
    assert BinaryWeight(draw, channelwise=False, learn_scale=True).scale.requires_grad


def test_real_weight_is_the_draw():
    draw = torch.randn(2, 3)
    weight = RealWeight(draw)
    assert torch.equal(weight.full, draw)
    assert weight.gain.item() == 1


def test_scale_gradient_is_the_contraction_of_the_weight_gradient():
    weight = BinaryWeight(torch.tensor([[0.5, -0.5]]), channelwise=False)
    weight.set_gradient_from_contrast(torch.tensor([[3.0, 1.0]]), factor=-2.0)
    assert weight.signs.grad is not None and weight.scale.grad is not None
    assert weight.signs.grad.tolist() == [[-6, -2]]
    # half (the paper's) * scale (the paper's use of W) * <signs, dL/dW> = 0.5 * 0.5 * (-6 + 2)
    assert weight.scale.grad.item() == -1
    weight.set_gradient_from_kernel(torch.tensor([[3.0, 1.0]]))
    assert weight.signs.grad.tolist() == [[6, 2]]
    assert weight.scale.grad.item() == 4
