import pytest
import torch

from binep import Dense, HardSigmoid, Heaviside, Network
from binep.core.neurons import Winners


def test_heaviside_fires_at_its_threshold():
    below = torch.tensor(0.5).nextafter(torch.tensor(0.0))
    assert Heaviside()(torch.stack([below, torch.tensor(0.5)])).tolist() == [False, True]
    assert Heaviside(threshold=0.25)(torch.tensor([0.2, 0.25])).tolist() == [False, True]


@pytest.mark.parametrize("sigma", [0.5, 0.25, 0.125])
def test_heaviside_listens_inside_its_window_only(sigma: float):
    states = torch.tensor([0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0])
    expected = [1 / (2 * sigma) if abs(s - 0.5) <= sigma else 0 for s in states.tolist()]
    assert Heaviside(sigma=sigma).slope(states).tolist() == expected


def test_full_window_never_gates_a_clamped_state():
    assert Heaviside().slope(torch.linspace(0, 1, 11)).tolist() == [1.0] * 11
    assert HardSigmoid().slope(torch.linspace(0, 1, 11)).tolist() == [1.0] * 11


def test_hard_sigmoid_has_no_slope_outside():
    assert HardSigmoid().slope(torch.tensor([-0.1, 1.1])).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [{"sigma": 0.0}, {"sigma": -1.0}, {"threshold": float("nan")}])
def test_impossible_windows_are_refused(bad: dict[str, float]):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        Heaviside(**bad)


def test_winners_are_the_largest_at_or_above_the_threshold():
    states = torch.tensor(
        [[0.9, 0.5, 0.7, 0.6], [0.5, 0.4, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5, 0.5]]
    )
    # Of equal ones the lower wins; where fewer reach the threshold, fewer are on.
    assert Winners(k=2)(states).int().tolist() == [
        [1, 0, 1, 0],
        [1, 0, 0, 1],
        [0, 0, 0, 0],
        [1, 1, 0, 0],
    ]
    assert Winners(k=1, group=2)(states[:1]).int().tolist() == [[1, 0, 1, 0]]
    assert torch.equal(Winners(k=4)(states), Heaviside()(states))
    assert Winners(k=9, threshold=0.65)(states[:1]).int().tolist() == [[1, 0, 1, 0]]


def test_channels_compete_at_each_place():
    images = torch.rand(3, 6, 4, 5)
    sent = Winners(k=2, group=3, threshold=0.0)(images)
    assert sent.shape == images.shape and sent.dtype == torch.bool
    places = images.movedim(1, -1).reshape(-1, 3)
    kept = sent.movedim(1, -1).reshape(-1, 3)
    assert (kept.sum(1) == 2).all()
    assert torch.equal(places.argmin(1), (~kept).int().argmax(1))


@pytest.mark.parametrize("bad", [{"k": 0}, {"group": 0}, {"k": 1.5}])
def test_impossible_competitions_are_refused(bad: dict):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"Winners {name}={value}: it must be an integer"):
        Winners(**bad)


def test_groups_that_do_not_divide_a_layer_are_refused():
    neurons = [Winners(group=4), Heaviside()]
    with pytest.raises(ValueError, match="group=4 on a layer of 6 neurons"):
        Network((3,), [Dense(3, 6), Dense(6, 2)], neurons, "hopfield", classes=2)
