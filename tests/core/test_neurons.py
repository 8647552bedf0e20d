import pytest
import torch

from binep import HardSigmoid, Heaviside


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
