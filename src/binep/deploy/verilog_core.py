"""Export to SystemVerilog: a core that runs in integers and may go on learning, with its testbench.

Modules that are the same for every network stand in `verilog/`; `binep_core.sv`, which wires them
up, and all memories are written here. What they hold at any time is what `FixedNetwork` and
`FixedLearner` have, bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import numpy as np

from binep.deploy import fixed, layout, rules
from binep.deploy.fixed import STATE_BITS, FixedNetwork
from binep.deploy.folder import readme, write_files
from binep.deploy.learning import FixedLearner, FixedRule
from binep.deploy.relaxing import LARGEST_BATCH, State
from binep.deploy.rules import BETA_BITS, PARAMETER_BITS
from binep.deploy.stored import LEVELS, Array, StoredCoupling, StoredNetwork
from binep.errors import BinepError

# Synapses of a coupling that are summed at once.
PARALLEL = 64
_MOST_PARALLEL = 1024
# Images whose states are written at every step, unless told otherwise.
TRACED = 4
# Neurons of a layer that are updated at once: one for so many synapses.
_SYNAPSES_A_UNIT = 8
# Of a register for beta, of which BETA_BITS are fractional.
_BETA_WIDTH = 24
# By how much learning may move a bias before it could overflow.
_BIAS_ROOM = 8
_MOST_PHASES = 4


def why_not(network: StoredNetwork) -> str | None:
    """Why there is no core for a network, in a few words; None if there is."""
    reason = fixed.why_not(network)
    if reason is not None:
        return reason
    if any(coupling.kind != "dense" for coupling in network.couplings):
        return "it has convolutions"
    if len(network.couplings) < 2:
        return "it has no hidden layer"
    return None


@dataclass(frozen=True)
class Core:
    """A network, and how its core is laid out.

    Attributes:
        state_bits: fractional bits of a state.
        parallel: N, synapses of a coupling that are summed in a cycle.
        learning: how it learns; None: it does not.
    """

    network: StoredNetwork
    state_bits: int = STATE_BITS
    parallel: int = PARALLEL
    learning: FixedRule | None = None

    def __post_init__(self) -> None:
        reason = why_not(self.network)
        if reason is not None:
            raise BinepError(f"no Verilog for this network: {reason}")
        n = self.parallel
        if not isinstance(n, int) or not 2 <= n <= _MOST_PARALLEL or n & (n - 1):
            raise BinepError(f"parallel={n!r}: allowed are powers of two, 2 to {_MOST_PARALLEL}")
        if self.learning is not None:
            _check_rule(self.learning)

    @cached_property
    def model(self) -> FixedNetwork:
        """What it computes."""
        return FixedNetwork(self.network, self.state_bits)

    @property
    def couplings(self) -> Sequence[StoredCoupling]:
        return self.network.couplings

    @property
    def units(self) -> int:
        """Neurons of a layer that are updated in a cycle."""
        return max(1, self.parallel // _SYNAPSES_A_UNIT)

    @property
    def sizes(self) -> list[int]:
        """Neurons of each layer, the input first."""
        return [self.couplings[0].below, *(coupling.above for coupling in self.couplings)]

    def blocks(self, layer: int) -> int:
        """Blocks of N neurons that a layer takes."""
        return layout.words(self.sizes[layer], self.parallel)

    def words(self, layer: int) -> int:
        """Words of `units` neurons that a layer takes."""
        return self.blocks(layer) * self.parallel // self.units

    def up_bits(self, n: int) -> int:
        """Width of a sum of coupling n on the way up, signed."""
        return (self.couplings[n].below * (LEVELS if n == 0 else 1)).bit_length() + 1

    def down_bits(self, n: int) -> int:
        """The same on the way down."""
        return self.couplings[n].above.bit_length() + 1

    @cached_property
    def drive_bits(self) -> int:
        """Width of drives and biases, signed: what the largest drive takes."""
        most = 0
        for n, coupling in enumerate(self.couplings):
            gain, _, bias = self.model.parameters(n)
            drive = int(np.abs(gain)) * coupling.below * (LEVELS if n == 0 else 1)
            if n + 1 < len(self.couplings):
                drive += int(np.abs(self.model.gains_down[n + 1])) * self.couplings[n + 1].above
            most = max(most, drive + int(np.abs(bias).max(initial=0)))
        if self.learning is not None:
            most += _BIAS_ROOM << PARAMETER_BITS
        return max(most.bit_length(), PARAMETER_BITS + 1) + 2

    @property
    def shown_bits(self) -> int:
        """Width of what the readout sums, signed: of a state or, of bits alone, of a drive."""
        return self.drive_bits if self.network.bits else self.state_bits + 2

    @property
    def constant_nudge(self) -> bool:
        """Whether nudges are kept: of bits alone none has to be, they do not depend on states."""
        phases = () if self.learning is None else self.learning.rule.plan.phases
        return not self.network.bits and any(p.nudged and p.constant for p in phases)

    @property
    def momentum_bits(self) -> int:
        return 0 if self.learning is None else self.learning.momentum_bits

    # --- what memories hold -----------------------------------------------------------------------

    def weight_words(self, n: int, weights: Array) -> Array:
        """Rows of a coupling as words, block by block: (blocks * above, N), bools or momenta."""
        room = self.blocks(n) * self.parallel
        rows = np.zeros((len(weights), room), weights.dtype)
        rows[:, : weights.shape[1]] = weights
        return rows.reshape(len(rows), -1, self.parallel).swapaxes(0, 1).reshape(-1, self.parallel)

    def neuron_words(self, layer: int, values: Array) -> Array:
        """Numbers of a layer as words of `units`: (words, units)."""
        room = np.zeros(self.words(layer) * self.units, np.int64)
        room[: len(values)] = values
        return room.reshape(-1, self.units)


def _check_rule(learning: FixedRule) -> None:
    plan = learning.rule.plan
    if len(plan.phases) > _MOST_PHASES or plan.phases[0].start is not None:
        raise BinepError("learning in Verilog: allowed are up to four phases, the first one free")
    for phase in plan.phases[1:]:
        if phase.start != 0:
            raise BinepError(
                "learning in Verilog: allowed are phases that begin where phase 0 ends"
            )
    for name, value in (*(("beta", beta) for beta in learning.betas), ("margin", learning.margin)):
        if abs(value) >= 1 << (_BETA_WIDTH - 1):
            most = 2.0 ** (_BETA_WIDTH - 1 - BETA_BITS)
            raise BinepError(
                f"{name} {value / 2**BETA_BITS:g} in Verilog: allowed is less than {most:g}"
            )
    for n, step in enumerate(learning.bias_step):
        if not 0 <= step < 1 << 32:
            raise BinepError(
                f"coupling {n}: a bias step of {step / 2**PARAMETER_BITS:g} in Verilog: allowed "
                f"is less than {2.0 ** (32 - PARAMETER_BITS):g}"
            )


# --- the folder ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vectors:
    """What the testbench shows a core.

    Attributes:
        images, labels: uint8 (count, *image shape) and integers (count,).
        lessons: which of them are also learnt, booleans (count,); None: none.
        traced: so many of the first ones come with all states at every step; at most those before
            the first lesson.
    """

    images: Array
    labels: Array
    lessons: Array | None = None
    traced: int = TRACED

    @property
    def learnt(self) -> Array:
        """Booleans (count,)."""
        return np.zeros(len(self.images), bool) if self.lessons is None else self.lessons

    @property
    def followed(self) -> int:
        """How many do come with all states."""
        first = int(self.learnt.argmax()) if self.learnt.any() else len(self.images)
        return min(self.traced, first)


def write(core: Core, to: Path, vectors: Vectors) -> list[Path]:
    """Write the core, its memories, testbench, vectors and a README into a folder."""
    folder = resources.files("binep") / "deploy" / "verilog"
    files: dict[str, str | bytes] = {
        name: (folder / name).read_bytes() for name in ("Makefile", "testbench.sv")
    }
    files |= modules(core)
    files |= memories(core, core.model, "coupling{}_weights.mem", "layer{}_biases.mem")
    shown = _vectors(core, vectors)
    states = shown["vectors_states.mem"].count("\n")
    files |= shown
    files["testbench_network.svh"] = "\n".join(_testbench(core, vectors, states)) + "\n"
    files["README.md"] = _readme(core, vectors)
    return write_files(to, files)


def modules(core: Core) -> dict[str, str]:
    """The core alone, without its testbench and what its memories hold."""
    folder = resources.files("binep") / "deploy" / "verilog"
    files = {
        path.name: path.read_text("utf-8")
        for path in folder.iterdir()
        if path.name.startswith("binep_")
    }
    return files | {"binep_core.sv": "\n".join(_core(core)) + "\n"}


def memories(core: Core, model: FixedNetwork, weights: str, biases: str) -> dict[str, str]:
    """Weights and biases as a model has them, as text for `$readmemh`; names take a number."""
    files = {}
    for n, coupling in enumerate(model.network.couplings):
        rows = core.weight_words(n, coupling.signs.reshape(coupling.above, -1) > 0)
        files[weights.format(n)] = _bit_lines(rows)
        words = core.neuron_words(n + 1, model.biases[n])
        files[biases.format(n + 1)] = _number_lines(words, core.drive_bits)
    return files


def _bit_lines(rows: Array) -> str:
    """Each row of bits as a number, bit 0 lowest."""
    packed = np.packbits(rows, axis=1, bitorder="little")[:, ::-1]
    digits = -(-rows.shape[1] // 4)
    return "".join(f"{row.tobytes().hex()[-digits:]}\n" for row in packed)


def _number_lines(words: Array, width: int) -> str:
    """Each row of numbers, two's complement, as one number, the first lowest."""
    bits = (words[:, :, None] >> np.arange(width)) & 1
    return _bit_lines(bits.astype(bool).reshape(len(words), -1))


# --- binep_core.sv ------------------------------------------------------------------------------

_PORTS = """\
// Wires the units of this network up: an input coupling, layers of neurons, couplings between them,
// a readout and a controller. Generated: see README.md.
module binep_core (
    input  logic        clk,
    input  logic        reset,
    // an image: its pixels, one per cycle, in order
    input  logic        pixel_valid,
    output logic        pixel_ready,
    input  logic [7:0]  pixel,
    // its class, where it is to be learnt
    input  logic        label_valid,
    output logic        label_ready,
    input  logic [15:0] label_class,
    // what it was read as
    output logic        result_valid,
    input  logic        result_ready,
    output logic [15:0] result_class,
    // registers of 32 bits
    input  logic        register_write,
    input  logic [7:0]  register_at,
    input  logic [31:0] register_written,
    output logic [31:0] register_value,
    // for an observer: a time step has ended
    output logic        stepped
);
    `include "binep_commands.svh"

    logic        start, keep_plus, keep_minus, keep_state, nudge_anew, reverse, pixel_last, turn;
    logic [3:0]  command;
    logic [15:0] first_target, last_target, best;"""


def _core(core: Core) -> Iterator[str]:
    """The lines of binep_core.sv."""
    layers = range(1, len(core.sizes))
    count = len(core.couplings)
    yield _PORTS
    yield f"    logic signed [{_BETA_WIDTH - 1}:0] beta, margin;"
    yield f"    logic [{count - 1}:0] leaks, busy_couplings, busy_layers, changed_layers;"
    yield f"    logic [{32 * count - 1}:0] thresholds, bias_steps;"
    yield "    logic shown_valid;"
    yield f"    logic [{core.shown_bits - 1}:0] shown;"
    yield from (f"    logic [31:0] events{n}, flips{n - 1};" for n in layers)
    yield ""
    for n in layers:
        yield from _layer_wires(core, n)
    yield from _control(core)
    for n in range(count):
        yield from _coupling(core, n)
    for n in layers:
        yield from _layer(core, n)
    yield from _instance(
        "binep_readout",
        "readout",
        {
            "PER_CLASS": core.network.per_class,
            "READ": _read(core.network),
            "WIDTH": core.shown_bits,
        },
        {
            "clk": "",
            "clear": "start && command == BEGIN_IMAGE",
            "valid": "shown_valid",
            "value": "shown",
            "best": "",
        },
    )
    yield "endmodule"


def _read(network: StoredNetwork) -> int:
    """Neurons of a class that the readout counts."""
    return network.per_class if network.readout == "average" else 1


def _instance(
    module: str, name: str, parameters: Mapping[str, object], ports: Mapping[str, str]
) -> Iterator[str]:
    """An instance; a port without an expression is wired to what has its name."""
    yield f"    {module} #("
    yield ",\n".join(f"        .{key}({value})" for key, value in parameters.items())
    yield f"    ) {name} ("
    yield ",\n".join(
        f"        .{port}({wire})" if wire else f"        .{port}" for port, wire in ports.items()
    )
    yield "    );\n"


def _named(ports: str, number: str = "") -> dict[str, str]:
    """Ports wired to what has their name, or their name and a number."""
    return {port: port + number if number else "" for port in ports.split()}


def _layer_wires(core: Core, n: int) -> Iterator[str]:
    top = n == len(core.couplings)
    yield f"    // layer {n}: {core.sizes[n]} neurons"
    yield f"    logic moved{n};"
    yield f"    logic [{core.parallel - 1}:0] now_a{n}, sent_a{n}, plus_a{n}, minus_a{n};"
    yield f"    logic [{core.parallel - 1}:0] now_b{n}, sent_b{n}, plus_b{n}, minus_b{n};"
    yield f"    logic [{_bits(core.blocks(n)) - 1}:0] block_a{n}, block_b{n}, down_at{n};"
    yield f"    logic [{_bits(core.words(n)) - 1}:0] up_at{n};"
    yield f"    logic [{core.units * core.up_bits(n - 1) - 1}:0] up_sums{n};"
    down = 1 if top else core.down_bits(n)
    yield f"    logic [{core.parallel * down - 1}:0] down_sums{n};"
    if top:
        yield f"    assign block_a{n} = '0;"
        yield f"    assign down_sums{n} = '0;"
    yield ""


def _control(core: Core) -> Iterator[str]:
    network, learning, count = core.network, core.learning, len(core.couplings)
    parameters: dict[str, object] = {
        "INPUTS": core.sizes[0],
        "COUPLINGS": count,
        "PER_CLASS": network.per_class,
        "TURNS": len(network.turns),
        "LEARNING": int(learning is not None),
        "BETA_WIDTH": _BETA_WIDTH,
    }
    if learning is None:
        parameters |= {"PHASES": 1, "STEPS": _packed([network.steps])}
    else:
        plan = learning.rule.plan
        parameters |= {
            "PHASES": len(plan.phases),
            "PLUS": plan.plus,
            "MINUS": plan.minus,
            "RESTORES": _flags(p > 1 for p in range(len(plan.phases))),
            "CONSTANT": _flags(phase.nudged and phase.constant for phase in plan.phases),
            "STEPS": _packed([phase.steps for phase in plan.phases]),
            "BETAS": _packed(learning.betas),
            "THRESHOLDS": _packed(learning.flip_above),
            "HALF_LIVES": _packed(learning.half_life),
            "BIAS_STEPS": _packed(learning.bias_step),
            "MARGIN": f"32'd{learning.margin}",
            "SEED": f"32'd{learning.seed}",
            "RANDOM_SIGN": int(learning.rule.random_sign),
            "REVERSE": int(learning.direction < 0),
        }
    wires = _named(
        "clk reset pixel_valid pixel_ready pixel_last label_valid label_ready label_class "
        "result_valid result_ready result_class register_write register_at register_written "
        "register_value start command turn keep_plus keep_minus keep_state beta margin nudge_anew "
        "first_target last_target reverse leaks thresholds bias_steps best"
    )
    wires["busy"] = "busy_couplings != 0 || busy_layers != 0"
    wires["changed"] = "changed_layers != 0"
    wires["events"] = " + ".join(f"events{n}" for n in range(1, count + 1))
    wires["flips"] = " + ".join(f"flips{n}" for n in range(count))
    wires["stepped"] = ""
    yield from _instance("binep_control", "control", parameters, wires)


def _coupling(core: Core, n: int) -> Iterator[str]:
    below, above = n, n + 1
    momentum_bits = max(core.momentum_bits, 2)
    words = core.blocks(below) * core.sizes[above]
    rows = core.blocks(above) * core.parallel
    parameters: dict[str, object] = {
        "N": core.parallel,
        "UNITS": core.units,
        "ABOVE": core.sizes[above],
        "BLOCKS": core.blocks(below),
        "GROUPS": core.blocks(above),
        "BLOCK_BITS": _bits(core.blocks(below)),
        "GROUP_BITS": _bits(core.blocks(above)),
        "ROW_BITS": _bits(rows),
        "WORD_BITS": max(_bits(words), _bits(rows)),
        "UP_BITS": _bits(core.words(above)),
        "LEARNING": int(core.learning is not None),
        "MOMENTUM_BITS": momentum_bits,
        "WEIGHTS": f'"coupling{n}_weights.mem"',
    }
    wires = {
        "clk": "",
        "reset": "",
        "start": f"start && (command != LEAK || leaks[{n}])",
        "command": "",
        "busy": f"busy_couplings[{n}]",
        "above_group": f"block_b{above}",
        "above_plus": f"plus_b{above}",
        "above_minus": f"minus_b{above}",
        "up_at": f"up_at{above}",
        "up_sums": f"up_sums{above}",
        "reverse": "",
        "threshold": f"thresholds[{32 * n} +: {momentum_bits}]",
        "flips": f"flips{n}",
    }
    if n == 0:
        parameters["SUM_BITS"] = core.up_bits(0)
        if core.learning is not None:
            parameters["PIXEL_SHIFT"] = core.learning.pixel_shift
        wires |= {"pixel_valid": "pixel_valid && pixel_ready", "pixel_last": "", "pixel": ""}
        yield from _instance("binep_input", "coupling0", parameters, wires)
        return
    parameters["UP_SUM_BITS"], parameters["DOWN_SUM_BITS"] = core.up_bits(n), core.down_bits(n)
    wires |= {"below_block": f"block_a{below}"}
    wires |= {f"below_{what}": f"{what}_a{below}" for what in ("now", "sent", "plus", "minus")}
    wires |= {f"above_{what}": f"{what}_b{above}" for what in ("now", "sent")}
    wires |= {
        "above_moved": f"moved{above}",
        "down_at": f"down_at{below}",
        "down_sums": f"down_sums{below}",
    }
    yield from _instance("binep_coupling", f"coupling{n}", parameters, wires)


def _layer(core: Core, n: int) -> Iterator[str]:
    top = n == len(core.couplings)
    model, learning = core.model, core.learning
    phases = () if learning is None else learning.rule.plan.phases
    gain_down = 0 if top else int(model.gains_down[n])
    bits, initial = core.network.bits, model.initial((1,))
    turns = (turn for turn, layers in enumerate(core.network.turns) if n - 1 in layers)
    parameters: dict[str, object] = {
        "COUNT": core.sizes[n],
        "N": core.parallel,
        "UNITS": core.units,
        "BLOCKS": core.blocks(n),
        "BLOCK_BITS": _bits(core.blocks(n)),
        "WORD_BITS": _bits(core.words(n)),
        "PARAMETER_BITS": PARAMETER_BITS,
        "STATE_BITS": core.state_bits,
        "DRIVE_BITS": core.drive_bits,
        "UP_SUM_BITS": core.up_bits(n - 1),
        "DOWN_SUM_BITS": 1 if top else core.down_bits(n),
        "GAIN_UP": _signed(int(model.gains[n - 1]), core.drive_bits),
        "GAIN_DOWN": _signed(gain_down, core.drive_bits),
        "HOPFIELD": int(bits),
        "TURN": next(turns),
        "INITIAL": int(model.activity(initial)[0]) if bits else int(initial[0]),
        "SHOWN_BITS": core.shown_bits,
        "TOP": int(top),
        "CONSTANT": int(core.constant_nudge),
        "RETURNS": int(len(phases) > 2),
        "BETA_BITS": BETA_BITS,
        "BETA_WIDTH": _BETA_WIDTH,
        "LEARNING": int(learning is not None),
        "BIASES": f'"layer{n}_biases.mem"',
    }
    wires = _named(
        "clk reset start command turn keep_plus keep_minus keep_state beta margin nudge_anew "
        "first_target last_target reverse"
    )
    wires |= {f"{what}": f"{what}_layers[{n - 1}]" for what in ("busy", "changed")}
    wires |= {"bias_step": f"bias_steps[{32 * (n - 1)} +: 32]"}
    numbered = (
        "moved events up_at up_sums down_at down_sums block_a now_a sent_a plus_a minus_a block_b "
        "now_b sent_b plus_b minus_b"
    )
    wires |= _named(numbered, str(n))
    wires |= {"shown_valid": "", "shown": ""} if top else {"shown_valid": " ", "shown": " "}
    yield from _instance("binep_layer", f"layer{n}", parameters, wires)


def _bits(count: int) -> int:
    """Width of an index below `count`, at least 1."""
    return max(1, (count - 1).bit_length())


def _packed(values: Sequence[int]) -> str:
    """Registers of 32 bits side by side, the first lowest."""
    words = ", ".join(f"32'h{value & 0xFFFFFFFF:x}" for value in reversed(values))
    return f"{{{words}}}"


def _flags(values: Iterator[bool]) -> str:
    bits = [int(value) for value in values]
    return f"{len(bits)}'b{''.join(map(str, reversed(bits)))}"


def _signed(value: int, width: int) -> str:
    return f"{'-' if value < 0 else ''}{width}'sd{abs(value)}"


# --- vectors and testbench ----------------------------------------------------------------------


def _vectors(core: Core, vectors: Vectors) -> dict[str, str]:
    """What the core is shown, and what the Python model does with it."""
    model = FixedNetwork(core.network, core.state_bits)  # Its biases will change.
    files = {"vectors_states.mem": _states(core, model, vectors.images[: vectors.followed])}
    if core.learning is None:
        outputs = model.relax(vectors.images)[-1]
    else:
        learner = FixedLearner(model, core.learning)
        outputs = _read_and_learn(learner, vectors)
        files |= memories(core, model, "learnt{}_weights.mem", "learnt{}_biases.mem")
        for n, momenta in enumerate(learner.momenta):
            words = core.weight_words(n, momenta.reshape(len(momenta), -1))
            files[f"learnt{n}_momenta.mem"] = _number_lines(words, core.momentum_bits)
    columns = {
        "pixels": (np.ascontiguousarray(vectors.images, np.uint8), 8),
        "labels": (vectors.labels, 16),
        "outputs": (outputs, core.shown_bits),
        "expected": (rules.winner(core.network.scores(outputs)), 16),
        "lessons": (vectors.learnt, 1),
    }
    return files | {
        f"vectors_{name}.mem": _number_lines(np.asarray(values, np.int64).reshape(-1, 1), width)
        for name, (values, width) in columns.items()
    }


def _read_and_learn(learner: FixedLearner, vectors: Vectors) -> Array:
    """The outputs of each image that it is read by, in its free phase: (count, outputs).

    A lesson is read before it is learnt; the outputs of bits alone are read without the handicap
    that learning drives them by.
    """
    found, begun = list[Array](), list[Array]()

    def watch(state: State, begins: bool) -> None:
        if begins:
            begun.append(state[-1])

    learner.watch = watch
    ends = [*np.flatnonzero(np.diff(vectors.learnt)) + 1, len(vectors.images)]
    for begin, end in zip([0, *ends], ends, strict=False):
        if not vectors.learnt[begin]:
            found.append(learner.fixed.relax(vectors.images[begin:end])[-1])
            continue
        for k in range(begin, end):
            begun.clear()
            learner.learn(vectors.images[k], int(vectors.labels[k]))
            # The second phase begins where the free one has ended.
            outputs = begun[1]
            if learner.network.bits:
                outputs = outputs - learner.handicap(int(vectors.labels[k]))
            found.append(outputs)
    return np.concatenate(found)


def _states(core: Core, model: FixedNetwork, images: Array) -> str:
    """States of all neurons after every step: images, steps, layers, neurons; one per line.

    Of bits alone their bits, until a step has changed none.
    """
    found, batches = list[str](), range(0, len(images), LARGEST_BATCH)
    for batch in (images[begin : begin + LARGEST_BATCH] for begin in batches):
        steps = [np.concatenate(state, axis=1) for state in model.trace(batch)]
        for k in range(len(batch)):
            states = np.stack([step[k] for step in steps])
            if core.network.bits:
                states = until_rest(model.activity(states))
            found.append(_number_lines(states[1:].reshape(-1, 1), _state_width(core)))
    return "".join(found)


def until_rest(bits: Array) -> Array:
    """Bits at t = 0, 1, ..., (steps + 1, neurons), up to the first step that has changed none."""
    same = (bits[1:] == bits[:-1]).all(1)
    return bits[: same.argmax() + 2] if same.any() else bits


def _state_width(core: Core) -> int:
    """Bits of what vectors hold of a neuron."""
    return 1 if core.network.bits else core.state_bits + 1


def _testbench(core: Core, vectors: Vectors, states: int) -> Iterator[str]:
    """The lines of testbench_network.svh: sizes, and how memories are compared."""
    bits, width = core.network.bits, _state_width(core)
    sizes = {
        "INPUTS": core.sizes[0],
        "OUTPUTS": core.sizes[-1],
        "STATE_WIDTH": width,
        "SHOWN_WIDTH": core.shown_bits,
        "STATES": states,
        "IMAGES": len(vectors.images),
        "TRACED": vectors.followed,
    }
    yield "// What the testbench has to know of this network. Generated: see README.md."
    yield from (f"localparam int {name} = {value};" for name, value in sizes.items())
    yield f"logic [{(2 * core.parallel if bits else core.units * width) - 1}:0] word;"
    yield ""
    yield "task compare_states;"
    # Bits now are the lower half of a word; the upper half is what sums know of them.
    memory = "bits_a" if bits else "energy.neurons.state_memory"
    each = core.parallel if bits else core.units
    for n, size in enumerate(core.sizes[1:], start=1):
        yield f"    for (int j = 0; j < {size}; j = j + 1) begin"
        yield f"        word = core.layer{n}.{memory}.content[j / {each}];"
        yield f"        compare_state(word[(j % {each}) * STATE_WIDTH +: STATE_WIDTH]);"
        yield "    end"
    yield "endtask"
    yield ""
    found = [] if core.learning is None else list(_learnt_memories(core))
    for name, _, width, depth in found:
        yield f"logic [{width - 1}:0] {name} [0:{depth - 1}];"
    if found:
        yield "initial begin"
        yield from (f'    $readmemh("{name}.mem", {name});' for name, *_ in found)
        yield "end"
    yield ""
    yield "task compare_learnt;"
    yield "    int wrong_words;"
    for name, path, _, depth in found:
        yield "    wrong_words = 0;"
        yield f"    for (int k = 0; k < {depth}; k = k + 1)"
        yield f"        if (core.{path}.content[k] !== {name}[k]) wrong_words = wrong_words + 1;"
        yield f'    $display("{name}: {depth} words, %0d differ", wrong_words);'
        yield "    differ = differ + wrong_words;"
    yield "endtask"


def _learnt_memories(core: Core) -> Iterator[tuple[str, str, int, int]]:
    """Of each memory that learning changes: its file, path in the core, width and depth."""
    for n, coupling in enumerate(core.couplings):
        depth = core.blocks(n) * coupling.above
        yield f"learnt{n}_weights", f"coupling{n}.synapses", core.parallel, depth
        width = core.parallel * core.momentum_bits
        yield f"learnt{n}_momenta", f"coupling{n}.learning.memory", width, depth
        width = core.units * core.drive_bits
        yield f"learnt{n + 1}_biases", f"layer{n + 1}.bias_memory", width, core.words(n + 1)


# --- the README ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """A memory of a core: its instance, its size, and what it holds."""

    name: str
    depth: int
    width: int
    content: str

    @property
    def bits(self) -> int:
        return self.depth * self.width


def core_memories(core: Core) -> list[Memory]:
    """All memories of a core, by their instances."""
    n_lanes, units, top = core.parallel, core.units, len(core.couplings)
    found = [Memory("coupling0.pixels", core.blocks(0), 8 * n_lanes, "the image")]
    for n, coupling in enumerate(core.couplings):
        depth, above = core.blocks(n) * coupling.above, 1 << _bits(core.words(n + 1))
        name = f"coupling{n}"
        found.append(Memory(f"{name}.synapses", depth, n_lanes, "weights"))
        if core.learning is not None:
            width = n_lanes * core.momentum_bits
            found.append(Memory(f"{name}.learning.memory", depth, width, "momenta"))
        width = units * core.up_bits(n)
        found.append(Memory(f"{name}.bank[0..{units - 1}].memory", above, width, "sums up"))
        if n > 0:
            width, below = n_lanes * core.down_bits(n), 1 << _bits(core.blocks(n))
            found.append(Memory(f"{name}.down_memory", below, width, "sums down"))
    phases = () if core.learning is None else core.learning.rule.plan.phases
    for n in range(1, top + 1):
        words, blocks, name = core.words(n), core.blocks(n), f"layer{n}"
        kept = units if core.network.bits else units * (core.state_bits + 1)
        if core.network.bits:
            neurons = f"{name}.hopfield.neurons"
        else:
            neurons = f"{name}.energy.neurons"
            found.append(Memory(f"{neurons}.state_memory", words, kept, "states"))
        if len(phases) > 2:
            what = "bits" if core.network.bits else "states"
            saved = f"{what} at the end of the free phase"
            found.append(Memory(f"{neurons}.returning.saved_memory", words, kept, saved))
        found.append(Memory(f"{name}.bias_memory", words, units * core.drive_bits, "biases"))
        if n == top and core.constant_nudge:
            width = units * (_BETA_WIDTH + core.state_bits + 2 - BETA_BITS)
            found.append(Memory(f"{neurons}.nudged.keeping.nudge_memory", words, width, "nudges"))
        for side in "ab":
            bits = "bits, now and as sums know them"
            found.append(Memory(f"{name}.bits_{side}", blocks, 2 * n_lanes, bits))
            for end in ("plus", "minus") if core.learning is not None else ():
                bits = f"bits at the end of phase {end}"
                instance = f"{name}.contrast.{end}_memory_{side}"
                found.append(Memory(instance, blocks, n_lanes, bits))
    return found


# What the README says of neurons with a state, and of bits alone.
_OF_STATES = {
    "DYNAMICS": "energy-based dynamics",
    "KEPT": "states",
    "BOXED": "states ",
    "SHOWN": "states",
    "MOVE": "All layers move at once.",
    "BOUND": "",
    "STATES_OR": "states or ",
    "STEPS_FILE": "",
    "STATE_ROW": "| state | @STATE_WIDTH@, 0 to 2^@STATE_BITS@ | 2^-@STATE_BITS@ |\n",
    "ARITHMETIC": """\
    drive = gain_up * up + bias + gain_down * down          all layers at once
    D     = floor(drive / 2^(@PARAMETER_BITS@ - @STATE_BITS@)) + nudge, kept in [-1, 2]
    s     = floor((s + D) / 2), kept in [0, 1];  bit = (s >= 1/2)
    nudge = floor(beta (y - s) / 2^@BETA_BITS@) + margin (1 - 2 y)  top layer, learning""",
    "STATE_ONE": "state",
    "TOGETHER": "all layers",
}
_OF_BITS = {
    "DYNAMICS": "bits alone (hopfield dynamics)",
    "KEPT": "bits",
    "BOXED": "bits   ",
    "SHOWN": "drives",
    "MOVE": """\
Layers move in turn: the odd ones (layer1, layer3, ...) after a scan, the even ones after another;
both are one time step. A phase ends with the first step that has changed no bit, or after STEPS of
them.""",
    "BOUND": ", at most",
    "STATES_OR": "",
    "STEPS_FILE": ", as many steps as an image takes",
    "STATE_ROW": "",
    "ARITHMETIC": """\
    drive = gain_up * up + bias + gain_down * down          odd layers, then even ones
    bit   = (drive + nudge >= 1/2)
    nudge = beta (y - 1/2) + margin (1 - 2 y)               top layer, learning

The readout sums drives of the free phase, without the margin.""",
    "STATE_ONE": "bit",
    "TOGETHER": "those of a turn",
}
# And of learning.
_LESSON = """\
    c = (bit above) (bit below) at the end of phase @PLUS@, less the same for phase @MINUS@
        coupling 0: (pixel >> @PIXEL_SHIFT@) in place of the bit below
    d = the sign of beta of phase @PLUS@, less beta of phase @MINUS@
    M = M - d c, kept in +-(2^@MOMENTUM_BITS@ / 2 - 1); halved towards 0 every HALF_LIFE images
    a weight flips where |M| > THRESHOLD and M has its sign
    bias = bias - d BIAS_STEP (bit at the end of phase @PLUS@, less the same for phase @MINUS@)

"""


def _readme(core: Core, vectors: Vectors) -> str:
    memories = core_memories(core)
    total = sum(memory.bits for memory in memories)
    momenta = sum(memory.bits for memory in memories if memory.content == "momenta")
    rows = (f"| `{m.name}` | {m.depth} | {m.width} | {m.bits} | {m.content} |" for m in memories)
    room = (
        "" if core.learning is None else f", as long as no bias has moved by more than {_BIAS_ROOM}"
    )
    values = {
        "PARALLEL": core.parallel,
        "UNITS": core.units,
        "SUBS": core.parallel // core.units,
        "LEARNING": "no" if core.learning is None else f"momenta of {core.momentum_bits} bits",
        "IMAGES": len(vectors.images),
        "LESSONS": int(vectors.learnt.sum()),
        "TRACED": vectors.followed,
        "INPUTS": core.sizes[0],
        "PHASES": _about_phases(core),
        "MEMORIES": "\n".join(rows),
        "TOTAL": total,
        "MOMENTUM_SHARE": f", {momenta} of them momenta" if momenta else "",
        "MOMENTUM_BITS": core.momentum_bits,
        "DRIVE_BITS": core.drive_bits,
        "PARAMETER_BITS": PARAMETER_BITS,
        "STATE_WIDTH": core.state_bits + 1,
        "STATE_BITS": core.state_bits,
        "BETA_WIDTH": _BETA_WIDTH,
        "BETA_BITS": BETA_BITS,
        "ROOM": room,
    }
    texts = {name: str(value) for name, value in values.items()}
    # Texts first, which have names of values in them.
    about = _OF_BITS if core.network.bits else _OF_STATES
    if core.learning is None:
        return readme("verilog", core.network, {"LESSON": "", **about, **texts})
    plan = core.learning.rule.plan
    texts |= {
        "PLUS": str(plan.plus),
        "MINUS": str(plan.minus),
        "PIXEL_SHIFT": str(core.learning.pixel_shift),
    }
    return readme("verilog", core.network, {"LESSON": _LESSON, **about, **texts})


def _about_phases(core: Core) -> str:
    if core.learning is None:
        return f"One phase: {core.network.steps} free steps{', at most' * core.network.bits}."
    rule = core.learning.rule
    lines = [
        f"- phase {n}: {'at most ' * core.network.bits}{phase.steps} steps, "
        + (f"beta {phase.beta:g}, {phase.nudge} nudge" if phase.nudged else "free")
        + (", from the end of phase 0" if n > 0 else ", from the initial state")
        for n, phase in enumerate(rule.plan.phases)
    ]
    if rule.plan.margin:
        lines.append(
            f"- in all phases drives of the right class are lowered by {rule.plan.margin:g}, those "
            "of others raised"
        )
    drawn = ", with all betas times a sign drawn for each image" if rule.random_sign else ""
    lines.append(f"- phase {rule.plan.plus} is contrasted with phase {rule.plan.minus}{drawn}")
    return "\n".join(lines)
