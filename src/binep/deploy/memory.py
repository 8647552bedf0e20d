"""Export to memory images: text files for Verilog's `$readmemh`, and test vectors of every step.

One word a line, in hexadecimal, the highest bit on the left; the README names widths and order.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from binep.deploy import fixed, layout
from binep.deploy.fixed import STATE_BITS, FixedNetwork
from binep.deploy.folder import readme, write_files
from binep.deploy.relaxing import Relaxer
from binep.deploy.rules import PARAMETER_BITS
from binep.deploy.runtime import Runtime
from binep.deploy.stored import Array, StoredNetwork

# Of a parameter in integers.
_WIDTH = 64

# What the README says of a step.
_OF_STATES = {
    "STATES": (
        "Line\n`(vector * (T + 1) + t) * neurons + neuron` of `vectors_states.mem` is a state."
    ),
    "MOVE": "all layers at once",
    "STEP": (
        "    s     = floor((s + (up + down)) / 2)      kept in [0, 1]\n\n"
        "In integers `up + down` is first rounded down to the unit of a state, and may be kept in "
        "[-1, 2]."
    ),
    "READ": "",
}
_OF_BITS = {
    "STATES": (
        "Line\n`vector * outputs + j` of `vectors_outputs.mem` is the drive of output j after T "
        "steps."
    ),
    "MOVE": (
        "the odd layers (the first\nabove the input, the third, ...), then the even ones, from "
        "what the odd ones have just become"
    ),
    "STEP": (
        "    a     = [up + down >= 1/2]                what the neuron sends from then on\n\n"
        "Nothing else is kept of a neuron. Once a step has changed no bit, none changes any more."
    ),
    "READ": " The state of an output\nis the `up` that its bit was decided by.",
}

# Takes a file's name, its width in bits, its words, and what it holds.
Add = Callable[[str, int, Array, str], None]


def write(
    network: StoredNetwork,
    to: Path,
    images: Array,
    labels: Array,
    *,
    state_bits: int = STATE_BITS,
) -> list[Path]:
    """Write memory images, test vectors and a README into a folder; returns the files.

    A network that runs in integers has integer parameters and states (see `fixed`); any other has
    float32 ones, as their 32 bits.
    """
    reason = fixed.why_not(network)
    model = FixedNetwork(network, state_bits) if reason is None else Runtime(network)
    rows: list[tuple[str, int, int, str]] = []
    files: dict[str, str] = {}

    def add(name: str, width: int, words: Array, what: str) -> None:
        """A file of words: integers or float32, (lines,), or rows of bits, (lines, width)."""
        if words.dtype == np.float32:
            width, words = 32, np.ascontiguousarray(words).view(np.uint32)
        lines = _bit_lines(words) if words.ndim == 2 else _word_lines(words, width)
        files[name] = "\n".join(lines) + "\n"
        rows.append((name, width, len(words), what))

    _add_couplings(model, add)
    _add_vectors(model, images, labels, add)
    values = {
        "FILES": "\n".join(f"| `{n}` | {w} | {c} | {what} |" for n, w, c, what in rows),
        "NUMBERS": _numbers(model, reason),
        "NEURONS": str(sum(math.prod(shape) for shape in network.layer_shapes)),
        "COUPLINGS": "\n".join(_coupling_row(network, n) for n in range(len(network.couplings))),
        "CLASSES": str(network.classes),
        "PER_CLASS": str(network.per_class),
        "INITIAL_STATE": _initial_word(model),
        **(_OF_BITS if network.bits else _OF_STATES),
    }
    files["README.md"] = readme("mem", network, values)
    return write_files(to, files)


def _add_couplings(model: Relaxer, add: Add) -> None:
    for n, coupling in enumerate(model.network.couplings):
        values = coupling.signs if coupling.binary else coupling.weight
        weights = layout.synapses(coupling, model.network.shapes[n], values)
        name, what = f"coupling{n}_weights.mem", f"weights of coupling {n}, "
        if coupling.binary:
            what += "a line for each neuron or channel above"
            add(name, coupling.fan_in, weights > 0, what)
        else:
            what += f"row by row, {coupling.fan_in} lines a row"
            add(name, 32, weights.reshape(-1), what)
        up, down, bias = map(np.ravel, model.parameters(n))
        add(f"coupling{n}_scale_up.mem", _WIDTH, up, f"scale of coupling {n}, upwards")
        if n > 0:  # Nothing is sent down to the input.
            add(f"coupling{n}_scale_down.mem", _WIDTH, down, "the same, downwards")
        add(f"coupling{n}_bias.mem", _WIDTH, bias, "biases of the layer above it")


def _add_vectors(model: FixedNetwork | Runtime, images: Array, labels: Array, add: Add) -> None:
    network = model.network
    pixels = np.asarray(images).reshape(len(images), -1)
    add("vectors_pixels.mem", 8, pixels.reshape(-1), f"{pixels.shape[1]} pixels a vector")
    # (vectors, steps + 1, neurons)
    states = np.stack(
        [
            np.concatenate([layout.neurons(s) for s in state], axis=1)
            for state in model.trace(images)
        ],
        axis=1,
    )
    width = model.state_bits + 1 if isinstance(model, FixedNetwork) else 32
    steps = f"{network.steps + 1} time steps a vector, from t = 0"
    if network.bits:
        outputs = states[:, -1, -network.classes * network.per_class :]
        add("vectors_outputs.mem", _WIDTH, outputs.reshape(-1), "drives of the outputs at the end")
    else:
        add("vectors_states.mem", width, states.reshape(-1), f"{states.shape[2]} neurons, {steps}")
    if network.binary:
        lines = model.activity(states).reshape(-1, states.shape[2])
        add("vectors_activity.mem", states.shape[2], lines, f"one line a step, {steps}")
    expected = f"class predicted ({network.readout} readout), one per vector"
    add("vectors_expected.mem", 16, model.predict(images), expected)
    add("vectors_labels.mem", 16, np.asarray(labels), "true class, one per vector")


def _numbers(model: FixedNetwork | Runtime, reason: str | None) -> str:
    if isinstance(model, Runtime):
        return (
            f"float32, as its 32 bits (IEEE 754): this network does not run in integers, "
            f"because {reason}"
        )
    if model.network.bits:
        return (
            f"scales, biases and drives: two's complement of {_WIDTH} bits in units of "
            f"2^-{PARAMETER_BITS}; a neuron is active from a drive of 2^{PARAMETER_BITS - 1} on"
        )
    return (
        f"scales and biases: two's complement of {_WIDTH} bits in units of "
        f"2^-{PARAMETER_BITS}; states: unsigned, {model.state_bits + 1} bits in units of "
        f"2^-{model.state_bits}, from 0 to 2^{model.state_bits}; a neuron is active from "
        f"2^{model.state_bits - 1} on"
    )


def _coupling_row(network: StoredNetwork, n: int) -> str:
    """A line of the README's table of couplings."""
    coupling, below = network.couplings[n], network.shapes[n]
    window = (
        (coupling.kernel, coupling.padding, coupling.pool) if coupling.kind == "conv" else "---"
    )
    shapes = ("x".join(map(str, shape)) for shape in (below, coupling.above_shape(below)))
    cells = (n, coupling.kind, *shapes, *window, coupling.fan_in)
    return f"| {' | '.join(map(str, cells))} |"


def _initial_word(model: FixedNetwork | Runtime) -> str:
    """The state of every neuron at t = 0, as `vectors_states.mem` has it; or its bit."""
    (state,) = model.initial((1,))
    if model.network.bits:
        return str(int(model.activity(state)))
    word = state.view(np.uint32) if isinstance(model, Runtime) else state
    return f"{int(word):x}"


def _word_lines(words: Array, width: int) -> list[str]:
    digits, mask = -(-width // 4), (1 << width) - 1
    return [f"{int(word) & mask:0{digits}x}" for word in words]


def _bit_lines(rows: Array) -> list[str]:
    """Each row of bits as one number, bit 0 lowest."""
    packed = np.packbits(rows, axis=1, bitorder="little")[:, ::-1]
    digits = -(-rows.shape[1] // 4)
    return [row.tobytes().hex()[-digits:] for row in packed]
