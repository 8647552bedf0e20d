"""Network: a chain of couplings, the dynamics of its layers, its targets and its readout."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import truediv
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from binep import registry
from binep.core.couplings import ConvPool, Coupling, Shape
from binep.core.described import Description, arguments, describe
from binep.core.dynamics import Dynamics, EnergyBased, Hopfield, Prototypical
from binep.core.kinds import is_one_of, kind_of, name_of
from binep.core.neurons import UNIT, HardSigmoid, Heaviside, Neuron, PerLayer, of_layers, range_of
from binep.core.turns import ONLY, UPDATES, turns
from binep.core.weights import wide
from binep.errors import BinepError, choose

State = list[Tensor]
Switches = list[Tensor | None]

DYNAMICS = ("prototypical", "energy", "hopfield")
COSTS = ("mse", "cross_entropy")
SENDS = ("activity", "state")
READOUTS = ("average", "single")
FREE_STEPS = 100
DT = 0.5
READ_AT_ONCE = 500  # samples


@dataclass(frozen=True)
class Clamped:
    """A mini-batch clamped to the input, with what it exerts on the first layer all along.

    `drive` is `up_1(x)`, (batch, *first layer), and `switches` are those of its pool: both stay
    constant during relaxation, so they are computed once a mini-batch. So does `handicap`, if there
    is one: what the outputs of a mini-batch have to win against, (batch, outputs).
    """

    x: Tensor
    drive: Tensor
    switches: Tensor | None
    handicap: Tensor | None = None


class Network(nn.Module):
    """A chain of layers `s0 = x, s1, ... sN`: `x` is clamped, the others relax.

    Args:
        input_shape: of one sample, (features,) or (channels, height, width).
        couplings: from input to output.
        neuron: `HardSigmoid()` or `Heaviside(threshold, sigma)`, for all layers; or a list, one for
            each layer that relaxes. By default bits with "hopfield" dynamics, else real.
        dynamics: "prototypical" (real activations), "energy", with step `dt`, or "hopfield": bits
            without an inner state.
        per_class: output neurons for each class, adjacent.
        classes: number of classes.
        initial_state: of all neurons at t = 0. By default that of the paper: 1 for energy-based
            dynamics, else 1/2 with a convolution in the chain, else 0; 0 with bits alone.
        dt: time step of the energy-based dynamics.
        cost: "mse" pulls the top layer by `y - s`; with "cross_entropy" the last coupling reads
            the top layer out by a softmax, outside the dynamics.
        clamp_nudged: whether the prototypical dynamics clamps its nudged top layer to [0, 1]. By
            default it does unless there is a convolution in the chain.
        nudged_sends: what a nudged top layer that is not clamped sends down, and what learning
            reads of it: its "state", beyond [0, 1] too, or its "activity", as every other layer;
            with that EP's gradient is none once outputs saturate.
        updates: "simultaneous": all layers move at once; or "alternating": a step is a sweep, in
            which the odd layers s1, s3, ... move, then the even ones, from what those have just
            become. Prototypical dynamics takes either, "hopfield" the latter.
        feedback: f, what every layer hears from the layer above is multiplied by, above 0; one
            number, or one per coupling (of the first, and of a softmax readout, it is not used).

    `net(x)` are the scores at rest, one number per class; to get there the network has
    `net.free_steps` steps, 100 until training says otherwise.

    >>> from binep import Dense
    >>> net = Network((784,), [Dense(784, 512), Dense(512, 10)])
    >>> [tuple(s.shape) for s in net.initial(torch.rand(64, 784))]
    [(64, 512), (64, 10)]
    >>> net(torch.rand(64, 784)).shape, net.predict_images(torch.rand(64, 784)).shape
    (torch.Size([64, 10]), torch.Size([64]))
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        couplings: Sequence[Coupling],
        neuron: Neuron | Sequence[Neuron] | None = None,
        dynamics: str = "prototypical",
        per_class: int = 1,
        classes: int = 10,
        initial_state: float | None = None,
        *,
        dt: float = DT,
        cost: str = "mse",
        clamp_nudged: bool | None = None,
        nudged_sends: str = "state",
        updates: str | None = None,
        feedback: float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        self.free_steps = FREE_STEPS
        self.couplings = cast("Sequence[Coupling]", nn.ModuleList(couplings))
        self.cost = choose(cost, COSTS, "cost")
        choose(dynamics, DYNAMICS, "dynamics")
        usual_neuron = Heaviside() if dynamics == "hopfield" else HardSigmoid()
        self.neuron = of_layers(usual_neuron if neuron is None else neuron, len(self.relaxing))
        self.updates = _updates(updates, dynamics)
        choose(nudged_sends, SENDS, "nudged_sends")
        self.per_class, self.classes = per_class, classes
        self.shapes = _chain_shapes(tuple(input_shape), couplings)
        self.feedback = _feedback(feedback, len(couplings))
        self._check_output()
        for neuron, layer in zip(self.neurons, self.layer_shapes, strict=True):
            getattr(neuron, "check_layer", lambda shape: None)(layer)

        convolutional = any(isinstance(coupling, ConvPool) for coupling in couplings)
        if dynamics == "energy":
            if not 0 < dt <= 1:
                raise BinepError(f"dt={dt}: the time step must be above 0 and at most 1")
            self.dynamics: Dynamics = EnergyBased(dt)
            usual_initial = 1.0
        elif dynamics == "hopfield":
            real = next((each for each in self.neurons if not each.binary), None)
            if real is not None:
                raise BinepError(
                    f"dynamics='hopfield' with {real}: allowed are binary activations, a state is "
                    "one bit"
                )
            self.dynamics = Hopfield()
            usual_initial = 0.0
        else:
            bits = next((each for each in self.neurons if each.binary), None)
            if bits is not None:
                raise BinepError(
                    f"dynamics='prototypical' with {bits}: bits that all change at once do "
                    "not settle; binary activations need dynamics='energy' or 'hopfield'"
                )
            clamp = not convolutional if clamp_nudged is None else clamp_nudged
            self.dynamics = Prototypical(clamp, not clamp and nudged_sends == "state")
            usual_initial = 0.5 if convolutional else 0.0
        self.initial_state = usual_initial if initial_state is None else float(initial_state)
        if not math.isfinite(self.initial_state):
            raise BinepError(f"initial_state={initial_state}: it must be a finite number")

    def _check_output(self) -> None:
        for name, value in (("per_class", self.per_class), ("classes", self.classes)):
            if not isinstance(value, int) or value < 1:
                raise BinepError(f"{name}={value!r}: it must be an integer of at least 1")
        if len(self.shapes[-1]) != 1:
            raise BinepError(
                f"output layer of shape {self.shapes[-1]}: allowed is a vector, so the last "
                "coupling must be Dense"
            )
        (outputs,) = self.shapes[-1]
        if outputs != self.classes * self.per_class:
            raise BinepError(
                f"per_class={self.per_class} and classes={self.classes} do not fit an output "
                f"layer of {outputs} neurons: allowed is per_class * classes = {outputs}"
            )
        if self.cost == "cross_entropy":
            if self.neurons and self.neurons[-1].binary:
                raise BinepError(
                    f"cost='cross_entropy' with {self.neurons[-1]}: allowed is cost='mse'"
                )
            if self.per_class != 1:
                raise BinepError(
                    f"cost='cross_entropy' with per_class={self.per_class}: allowed is 1, the "
                    "softmax reads one number a class"
                )
            if len(self.couplings) < 2:
                raise BinepError(
                    "cost='cross_entropy' with a single coupling: at least 2 are needed, the last "
                    "one only reads out"
                )

    @property
    def input_shape(self) -> Shape:
        return self.shapes[0]

    @property
    def relaxing(self) -> Sequence[Coupling]:
        """The couplings inside the dynamics: all of them, or all but a softmax readout."""
        return list(self.couplings)[: -1 if self.cost == "cross_entropy" else None]

    @property
    def layer_shapes(self) -> list[Shape]:
        """Shapes of the layers that relax, s1 to the top."""
        return self.shapes[1 : len(self.relaxing) + 1]

    @property
    def neurons(self) -> list[Neuron]:
        """The neuron of each layer that relaxes, s1 to the top."""
        if isinstance(self.neuron, PerLayer):
            return list(self.neuron.layers)
        return [self.neuron] * len(self.relaxing)

    @property
    def energy_factors(self) -> list[float]:
        """`d_n` of each layer that relaxes, s1 to the top: what its part of the energy counts.

        With `d_N = 1` and `d_n = d_{n+1} / f_{n+1}` a layer that hears `f W^T a` from above still
        descends one energy, see `binep.core.energy`.
        """
        downward = reversed(self.feedback[1 : len(self.relaxing)])
        return [*accumulate(downward, truediv, initial=1.0)][::-1]

    # --- storing ----------------------------------------------------------------------------

    def describe(self) -> Description:
        """The arguments that make a network like this one; couplings and neurons in words."""
        names = {Prototypical: "prototypical", EnergyBased: "energy", Hopfield: "hopfield"}
        for part, kinds in ((self, {Network}), (self.dynamics, names)):
            if not is_one_of(part, kinds):
                raise BinepError(
                    f"{name_of(part)} has no description: allowed is "
                    f"{' or '.join(sorted(kind.__name__ for kind in kinds))}"
                )
        apart = isinstance(self.neuron, PerLayer)
        neurons = [describe(registry.neurons, each) for each in self.neurons]
        return arguments(
            self,
            couplings=[describe(registry.couplings, each) for each in self.couplings],
            neuron=neurons if apart else neurons[0],
            dynamics=names[kind_of(self.dynamics)],
            dt=getattr(self.dynamics, "dt", DT),
            clamp_nudged=getattr(self.dynamics, "clamp_nudged", None),
            nudged_sends="state" if self.sends_state else "activity",
        )

    def stored(self) -> dict[str, Tensor]:
        """All that it has learnt: `couplings.N.PART`, with the parts of `Coupling.stored`."""
        return {
            f"couplings.{n}.{part}": tensor
            for n, coupling in enumerate(self.couplings)
            for part, tensor in coupling.stored().items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `stored` gave, of a network like this one."""
        for n, coupling in enumerate(self.couplings):
            start = f"couplings.{n}."
            coupling.restore(
                {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
            )

    # --- states -----------------------------------------------------------------------------

    def check(self, x: Tensor | Any) -> Tensor:
        """A mini-batch that fits, (batch, *input_shape); an error that says what would.

        Where the input is a vector, images are flattened. A numpy array is taken as a tensor.
        """
        x = self._tensor(x)
        flat = len(self.input_shape) == 1 and x.dim() > 1
        x = x.flatten(1) if flat else x
        if x.dim() < 1 or len(x) == 0 or tuple(x.shape[1:]) != self.input_shape:
            raise BinepError(
                f"input of shape {tuple(x.shape)} does not fit: allowed is (batch, "
                f"{', '.join(map(str, self.input_shape))}) with a batch of at least 1"
            )
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise BinepError("input holds NaN or infinite values: allowed are finite numbers")
        if not x.is_floating_point() and x.dtype not in (torch.uint8, torch.bool):
            raise BinepError(f"input of dtype {x.dtype}: allowed are floating, uint8 and bool")
        return x

    def _tensor(self, values: Any) -> Tensor:
        """Numpy arrays and lists as tensors where the network is; numbers in its precision."""
        if isinstance(values, Tensor):
            return values
        like = self.couplings[0].synapses.kernel
        found = torch.as_tensor(values, device=like.device)
        return found.to(like.dtype) if found.is_floating_point() else found

    def clamp(self, x: Tensor | Clamped) -> Clamped:
        """Clamp a mini-batch to the input: real numbers, or uint8 pixels standing for 0..1."""
        if isinstance(x, Clamped):
            return x
        x = self.check(x)
        return Clamped(x, *self.couplings[0].up(x))

    def initial(self, x: Tensor | Clamped) -> State:
        """The states s1..sN at t = 0 for a mini-batch: the input excluded."""
        x = x.x if isinstance(x, Clamped) else self.check(x)
        like = self.couplings[0].synapses.kernel
        return [like.new_full((len(x), *shape), self.initial_state) for shape in self.layer_shapes]

    def activity(self, state: State, *, nudged: bool = False) -> list[Tensor]:
        """What the layers send each other and what learning reads: `a = rho(s)`.

        Only a nudged top layer may send its state instead, see `nudged_sends`.
        """
        sent = [neuron(s) for neuron, s in zip(self.neurons, state, strict=True)]
        if nudged and self.sends_state:
            sent[-1] = state[-1]
        return sent

    @property
    def turns(self) -> list[range]:
        """Which layers move together in a step, by number from 0, and in which order."""
        return turns(self.updates, len(self.relaxing))

    @property
    def sends_state(self) -> bool:
        """Whether a nudged top layer sends its state, which can then be outside [0, 1]."""
        return isinstance(self.dynamics, Prototypical) and self.dynamics.send_state

    def drives(
        self, clamped: Clamped, activity: Sequence[Tensor], layers: Sequence[int]
    ) -> list[Tensor]:
        """`drive_n = up_n(a_{n-1}) + f_{n+1} down_{n+1}(a_{n+1})` for each of these layers.

        `down` uses the switches of `up_{n+1}(a_n)`, at the same activity. The top layer has no
        `down`, only a handicap, if there is one.
        """
        chain, top = self.relaxing, len(self.relaxing) - 1
        ups = {0: (clamped.drive, clamped.switches)}
        for n in range(1, len(chain)):
            if n in layers or (n - 1 in layers and chain[n].pool > 1):
                ups[n] = chain[n].up(activity[n - 1])
        drives = []
        for n in layers:
            drive, _ = ups[n]
            if n < top:
                _, switches = ups.get(n + 1, (None, None))
                down = chain[n + 1].down(activity[n + 1], switches, self.layer_shapes[n])
                drive = drive + self.feedback[n + 1] * down
            elif clamped.handicap is not None:
                drive = drive + clamped.handicap
            drives.append(drive)
        return drives

    def switches(self, clamped: Clamped, activity: Sequence[Tensor]) -> Switches:
        """The pools' switches at a given activity, one entry a coupling; None where none pools."""
        return [clamped.switches] + [
            coupling.up(below)[1] if coupling.pool > 1 else None
            for coupling, below in zip(self.relaxing[1:], activity, strict=False)
        ]

    # --- targets, cost, readout -------------------------------------------------------------

    def target(self, labels: Tensor) -> Tensor:
        """One-hot targets of class indices, (batch,), repeated per class: (batch, outputs).

        They are 1 and 0, or the ends of another range that outputs have. A floating tensor of shape
        (batch, outputs) is already a target and passes unchanged.
        """
        outputs = self.classes * self.per_class
        labels = self._tensor(labels)
        if labels.is_floating_point():
            if labels.dim() != 2 or labels.shape[1] != outputs:
                raise BinepError(
                    f"target of shape {tuple(labels.shape)}: allowed is (batch, {outputs})"
                )
            return labels
        if labels.dim() != 1:
            raise BinepError(f"labels of shape {tuple(labels.shape)}: allowed is (batch,)")
        labels = labels.long()
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise BinepError(f"label {int(wrong[0])}: allowed are 0 to {self.classes - 1}")
        one_hot = F.one_hot(labels, self.classes).to(self.couplings[0].synapses.kernel.dtype)
        target = one_hot.repeat_interleave(self.per_class, dim=1)
        low, high = self.output_range
        return target if (low, high) == UNIT else low + (high - low) * target

    @property
    def output_range(self) -> tuple[float, float]:
        """What outputs can be, [0, 1] as a rule; a softmax readout's are probabilities."""
        return UNIT if self.cost == "cross_entropy" else range_of(self.neurons[-1])

    def logits(self, state: State) -> Tensor:
        """What the softmax readout of `cost="cross_entropy"` sees, (batch, classes)."""
        return self.couplings[-1].up(self.neurons[-1](state[-1]))[0]

    def loss(self, state: State, target: Tensor) -> Tensor:
        """Batch mean of `1/2 |y - s_top|^2` (eq. 18), or of the cross-entropy.

        Of bits alone it is `1/2 |y - a_top|^2`.
        """
        if self.cost == "cross_entropy":
            return F.cross_entropy(self.logits(state), target)
        return 0.5 * (target - self._compared(state)).square().sum(1).mean()

    def _compared(self, state: State) -> Tensor:
        """What is compared with targets: the outputs' state, or where it is all there is, bit."""
        top = state[-1]
        return self.neurons[-1](top).to(top.dtype) if self.dynamics.bits else top

    def costs(self, state: State, target: Tensor) -> Tensor:
        """What `loss` is the mean of, one per sample, in float64, (batch,)."""
        if self.cost == "cross_entropy":
            logits = self.logits(state).to(wide(target))
            return F.cross_entropy(logits, target.to(logits.dtype), reduction="none")
        top = self._compared(state).to(wide(target))
        return 0.5 * (target.to(top.dtype) - top).square().sum(1)

    def pull(self, state: State, target: Tensor) -> Tensor:
        """What draws the top layer to its target, `-d cost/d s_top`, like the top layer.

        `y - s_top`, or `W^T (y - softmax)` through the readout of the cross-entropy. A bit is drawn
        by what the cost falls by when it turns on, `y - 1/2`, whatever it is now.
        """
        if self.cost == "cross_entropy":
            surprise = target - self.logits(state).softmax(1)
            return self.couplings[-1].down(surprise, None, self.layer_shapes[-1])
        return target - (sum(UNIT) / 2 if self.dynamics.bits else state[-1])

    def change(self, before: State, after: State) -> Tensor:
        """The largest change of any neuron in any sample, (); of its bit, if that is all it has."""
        if self.dynamics.bits:
            before, after = ([a.float() for a in self.activity(s)] for s in (before, after))
        changes = [(b - a).abs().max() for b, a in zip(before, after, strict=True)]
        return torch.stack(changes).max()

    def scores(self, state: State, readout: str = "average") -> Tensor:
        """One number a class, (batch, classes), from the internal state of the output neurons."""
        choose(readout, READOUTS, "readout")
        top = self.logits(state) if self.cost == "cross_entropy" else state[-1]
        groups = top.unflatten(1, (self.classes, self.per_class))
        # In float64 the order of the sum cannot decide between two classes.
        return groups.to(wide(groups)).mean(2) if readout == "average" else groups[:, :, 0]

    def predict(self, state: State, readout: str = "average") -> Tensor:
        """Class indices, (batch,): argmax of the class's average, or of its first neuron.

        On a tie the lower class wins.
        """
        return self.scores(state, readout).argmax(1)

    @torch.no_grad()
    def forward(self, x: Tensor | Any, readout: str = "average") -> Tensor:
        """The scores of the classes once the network has settled, (batch, classes)."""
        from binep.core.relaxation import relax

        clamped = self.clamp(x)
        free = relax(self, clamped, self.initial(clamped), self.free_steps, tolerance=0.0)
        return self.scores(free.state, readout)

    def predict_images(self, x: Tensor | Any, readout: str = "average") -> Tensor:
        """Class indices of any number of samples, (count,), read a few hundred at a time."""
        parts = self.check(x).split(READ_AT_ONCE)
        return torch.cat([self(part, readout).argmax(1) for part in parts])


def _updates(updates: str | None, dynamics: str) -> str:
    """In which order layers move, as far as the dynamics leaves a choice."""
    if updates is None:
        return "alternating" if dynamics == "hopfield" else "simultaneous"
    choose(updates, UPDATES, "updates")
    if updates != (only := ONLY.get(dynamics, updates)):
        raise BinepError(f"updates={updates!r} with dynamics={dynamics!r}: allowed is {only!r}")
    return updates


def _feedback(values: float | Sequence[float], couplings: int) -> list[float]:
    """What is sent down through each coupling is multiplied by, one number each."""
    given = isinstance(values, Sequence)
    found = [float(value) for value in values] if given else [float(values)] * couplings
    if len(found) != couplings or not all(0 < value < math.inf for value in found):
        raise BinepError(
            f"feedback={values}: allowed is a finite number above 0, or one for each of the "
            f"{couplings} couplings"
        )
    return found


def _chain_shapes(input_shape: Shape, couplings: Sequence[Coupling]) -> list[Shape]:
    """The shapes of all layers, from the input up; an error where two do not connect."""
    if len(input_shape) not in (1, 3) or any(
        not isinstance(size, int) or size < 1 for size in input_shape
    ):
        raise BinepError(
            f"input_shape={input_shape}: allowed are (features,) and (channels, height, width), "
            "each at least 1"
        )
    if not couplings:
        raise BinepError("a network without couplings: at least 1 is needed")
    for earlier, later in pairwise(couplings):
        if earlier is later:
            raise BinepError(f"{later} appears twice: every coupling needs weights of its own")
    shapes = [input_shape]
    for n, coupling in enumerate(couplings):
        try:
            shapes.append(coupling.above_shape(shapes[-1]))
        except BinepError as error:
            raise BinepError(f"coupling {n}: {error}") from None
    return shapes
