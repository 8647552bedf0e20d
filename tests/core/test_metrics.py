import math

import pytest
import torch

from binep import Dense, Network
from binep.core import metrics


def test_errors_count_both_readouts():
    net = Network((4,), [Dense(4, 6)], classes=3, per_class=2)
    top = torch.tensor([[0.5, 0.5, 0.6, 0.0, 0.1, 0.2], [0.9, 0.9, 0.0, 0.0, 0.0, 0.0]])
    assert metrics.errors(net, [top], torch.tensor([0, 1])) == {"average": 1, "single": 2}


def test_pi_is_a_natural_logarithm_with_a_floor():
    assert metrics.pi(0, 10**6) == pytest.approx(-9)
    assert metrics.pi(50, 1000) == pytest.approx(math.log(0.05 + math.exp(-9)))
    assert metrics.pi(2000, 1000) == pytest.approx(math.log(2), abs=1e-3)


def test_cosine_and_distance_of_two_sets():
    a = {"w": torch.tensor([3.0, 4.0]), "b": torch.zeros(2), "c": torch.zeros(1)}
    b = {"w": torch.tensor([4.0, -3.0]), "b": torch.zeros(2), "c": torch.ones(1)}
    assert metrics.cosine(a, b) == {"w": 0, "b": 1, "c": 0}
    assert metrics.relative_distance(a, b) == {"w": pytest.approx(math.sqrt(2)), "b": 0, "c": 1}
    assert metrics.cosine(a, a)["w"] == pytest.approx(1)


def test_tiny_gradients_do_not_underflow():
    a = {"w": torch.full((3,), 1e-30)}
    assert metrics.cosine(a, a)["w"] == pytest.approx(1)


def test_sets_of_different_parameters_are_refused():
    with pytest.raises(ValueError, match="only in one set"):
        metrics.cosine({"w": torch.ones(1)}, {"v": torch.ones(1)})
