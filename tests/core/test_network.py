from dataclasses import dataclass

import pytest
import torch

from binep import (
    BinepError,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Network,
    relax,
)
from binep.core.relaxation import step


def small(**options) -> Network:
    return Network((4,), [Dense(4, 6), Dense(6, 6)], classes=3, per_class=2, **options)


def conv_chain() -> list:
    return [ConvPool(1, 3, kernel=3, padding=1, pool=2), Dense(48, 10)]


def test_initial_states_are_the_papers():
    x, image = torch.rand(2, 4), torch.rand(2, 1, 8, 8)
    assert [s.unique().tolist() for s in small().initial(x)] == [[0], [0]]
    assert [s.unique().tolist() for s in small(dynamics="energy").initial(x)] == [[1], [1]]
    assert Network((1, 8, 8), conv_chain()).initial(image)[0].unique().tolist() == [0.5]
    energy = Network((1, 8, 8), conv_chain(), Heaviside(), "energy")
    assert energy.initial(image)[0].unique().tolist() == [1]
    assert small(initial_state=0.25).initial(x)[1].unique().tolist() == [0.25]


def test_layers_are_chained_through_several_dense_layers_after_convolutions():
    chain = [
        ConvPool(3, 4, kernel=5, padding=2, pool=2),
        ConvPool(4, 5, kernel=3, pool=3),
        Dense(20, 12),
        Dense(12, 7),
        Dense(7, 10),
    ]
    net = Network((3, 16, 16), chain)
    assert net.layer_shapes == [(4, 8, 8), (5, 2, 2), (12,), (7,), (10,)]
    assert [tuple(s.shape) for s in net.initial(torch.rand(2, 3, 16, 16))][1] == (2, 5, 2, 2)


def test_target_repeats_the_one_hot_with_neurons_of_a_class_adjacent():
    target = small().target(torch.tensor([2, 0]))
    assert target.tolist() == [[0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0]]


def test_readouts_average_and_single_can_differ():
    state = [torch.zeros(1, 6), torch.tensor([[0.5, 0.5, 0.6, 0.0, 0.1, 0.2]])]
    assert small().predict(state, "average").tolist() == [0]
    assert small().predict(state, "single").tolist() == [1]


def test_binary_outputs_are_read_from_their_states_not_their_bits():
    state = [torch.zeros(1, 6), torch.tensor([[0.8, 0.8, 0.9, 0.9, 0.7, 0.7]])]
    net = small(neuron=Heaviside(), dynamics="energy")
    assert net.predict(state, "average").tolist() == net.predict(state, "single").tolist() == [1]


def test_ties_go_to_the_lower_class():
    state = [torch.zeros(1, 6), torch.full((1, 6), 0.5)]
    assert small().predict(state).tolist() == [0]


def test_images_are_flattened_for_a_vector_input_only():
    net = Network((4,), [Dense(4, 10)])
    assert len(net.initial(torch.rand(3, 1, 2, 2))[0]) == 3
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 3\).*allowed is \(batch, 3, 8, 8\)"):
        Network((3, 8, 8), [Dense(192, 10)]).initial(torch.rand(2, 8, 8, 3))


def test_cross_entropy_reads_out_beyond_the_dynamics():
    net = Network((4,), [Dense(4, 6), Dense(6, 3)], classes=3, cost="cross_entropy")
    (state,) = net.initial(torch.rand(2, 4))
    assert state.shape == (2, 6)
    scores = net.couplings[-1].up(state)[0]
    assert net.predict([state]).tolist() == scores.argmax(1).tolist()
    assert net.loss([state], net.target(torch.tensor([0, 1]))) > 0


def test_pull_is_minus_the_gradient_of_the_cost():
    torch.manual_seed(0)
    for cost in ("mse", "cross_entropy"):
        net = Network((4,), [Dense(4, 6), Dense(6, 3)], classes=3, cost=cost).double()
        state = [s + 0.3 for s in net.initial(torch.rand(1, 4))]
        state[-1].requires_grad_()
        target = net.target(torch.tensor([1]))
        (gradient,) = torch.autograd.grad(net.loss(state, target), state[-1])
        torch.testing.assert_close(net.pull(state, target), -gradient)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Network((5,), [Dense(4, 10)]), r"coupling 0.*\(5,\).*allowed: 4"),
        (lambda: Network((4,), [Dense(4, 6), Dense(5, 10)]), r"coupling 1.*\(6,\).*allowed: 5"),
        (lambda: Network((1, 4, 4), [ConvPool(3, 10, kernel=4)]), "coupling 0"),
        (lambda: Network((4, 4), [Dense(16, 10)]), r"input_shape=\(4, 4\)"),
        (lambda: Network((4,), []), "at least 1"),
        (lambda: Network((1, 4, 4), [ConvPool(1, 10, kernel=4)]), r"\(10, 1, 1\).*must be Dense"),
        (lambda: Network((4,), [Dense(4, 10)], per_class=3), "per_class=3.*10 neurons"),
        (lambda: Network((4,), [Dense(4, 10)], classes=3), "classes=3.*10 neurons"),
        (lambda: Network((4,), [Dense(4, 10)], per_class=0), "per_class=0"),
        (
            lambda: Network((4,), [Dense(4, 10)], dynamics="enrgy"),
            "'enrgy'.*'energy'.*prototypical",
        ),
        (lambda: Network((4,), [Dense(4, 10)], cost="l1"), "'l1'.*mse, cross_entropy"),
        (lambda: Network((4,), [Dense(4, 10)], Heaviside()), "prototypical.*energy"),
        (lambda: Network((4,), [Dense(4, 10)], dynamics="energy", dt=0), "dt=0"),
        (lambda: Network((4,), [Dense(4, 10)], initial_state=float("nan")), "initial_state=nan"),
        (
            lambda: Network(
                (4,), [Dense(4, 6), Dense(6, 10)], Heaviside(), "energy", cost="cross_entropy"
            ),
            "cost='mse'",
        ),
        (lambda: Network((4,), [Dense(4, 10)], cost="cross_entropy"), "at least 2"),
    ],
)
def test_impossible_networks_are_refused(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(2, 5), r"\(2, 5\).*\(batch, 4\)"),
        (torch.rand(0, 4), "batch of at least 1"),
        (torch.full((2, 4), float("nan")), "NaN"),
        (torch.full((2, 4), float("inf")), "infinite"),
        (torch.ones(2, 4, dtype=torch.int64), "int64"),
        (torch.tensor(1.0), r"\(batch, 4\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x: torch.Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        small().initial(x)
    with pytest.raises(ValueError, match=message):
        small().clamp(x)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), "label 3: allowed are 0 to 2"),
        (torch.tensor([-1]), "label -1"),
        (torch.tensor([[0]]), r"\(1, 1\)"),
        (torch.rand(2, 5), r"\(2, 5\).*\(batch, 6\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: torch.Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        small().target(labels)


def test_unknown_readout_is_refused():
    with pytest.raises(ValueError, match=r"'mean'.*average, single"):
        small(neuron=HardSigmoid()).predict([torch.zeros(1, 6)] * 2, "mean")


@dataclass(frozen=True)
class Tanh:
    name = "tanh"
    binary = False
    range = (-1.0, 1.0)

    def __call__(self, state):
        return state.tanh()

    def slope(self, state):
        return 1 - state.tanh().square()


def test_each_layer_may_have_a_neuron_of_its_own():
    net = small(neuron=[Heaviside(), HardSigmoid()], dynamics="energy")
    state = [torch.full((1, 6), 0.7), torch.full((1, 6), 0.7)]
    bits, numbers = net.activity(state)
    assert bits.dtype == torch.bool and bits.all() and torch.equal(numbers, state[1])
    # A bit weighs more on the layer above than the number it stands for.
    other = small(dynamics="energy")
    other.load_state_dict(net.state_dict())
    x = torch.rand(1, 4)
    assert not torch.equal(step(net, net.clamp(x), state)[1], step(other, other.clamp(x), state)[1])
    assert small(neuron=[HardSigmoid()] * 2).neuron == HardSigmoid()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"neuron": [HardSigmoid()]}, "1 neurons for 2 layers"),
        ({"neuron": [HardSigmoid(), Heaviside()]}, "prototypical.*Heaviside.*do not settle"),
    ],
)
def test_neurons_that_do_not_fit_are_refused(options: dict, told: str):
    with pytest.raises(BinepError, match=told):
        small(**options)


def test_states_and_targets_stay_within_the_range_of_the_neuron():
    net = small(neuron=Tanh(), dynamics="energy", initial_state=0.0)
    assert net.target(torch.tensor([1])).tolist() == [[-1, -1, 1, 1, -1, -1]]
    with torch.no_grad():
        net.couplings[0].bias.copy_(torch.tensor([-9.0, 9.0] * 3))
    x = torch.zeros(1, 4)
    hidden, _ = relax(net, x, net.initial(x), 20).state
    # Its slope at the ends is 0.42: 9 drives it there and holds it.
    assert hidden[0].tolist() == [-1, 1] * 3
    with pytest.raises(BinepError, match=r"margin=0.1 with outputs in \(-1.0, 1.0\)"):
        EquilibriumPropagation(2, 1, 0.1, margin=0.1).check(net)
