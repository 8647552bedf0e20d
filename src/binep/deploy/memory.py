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
from binep.deploy.rules import PARAMETER_BITS
from binep.deploy.runtime import Runtime
from binep.deploy.stored import Array, StoredNetwork

_PARAMETER_WIDTH = 64

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
    whole = FixedNetwork(network, state_bits) if fixed.why_not(network) is None else None
    rows: list[tuple[str, int, int, str]] = []
    files: dict[str, str] = {}

    def add(name: str, width: int, words: Array, what: str) -> None:
        """A file of words: integers, (lines,), or rows of bits, (lines, width)."""
        lines = _bit_lines(words) if words.ndim == 2 else _word_lines(words, width)
        files[name] = "\n".join(lines) + "\n"
        rows.append((name, width, len(words), what))

    _add_couplings(network, whole, add)
    _add_vectors(network, whole, images, labels, add)
    values = {
        "FILES": "\n".join(f"| `{n}` | {w} | {c} | {what} |" for n, w, c, what in rows),
        "NUMBERS": _numbers(network, whole),
        "NEURONS": str(sum(math.prod(shape) for shape in network.layer_shapes)),
    }
    files["README.md"] = readme("mem", network, values)
    return write_files(to, files)


def _add_couplings(network: StoredNetwork, whole: FixedNetwork | None, add: Add) -> None:
    for n, coupling in enumerate(network.couplings):
        shape = network.shapes[n]
        if coupling.binary:
            bits = layout.synapses(coupling, shape, coupling.signs) > 0
            what = f"weights of coupling {n}, a line for each neuron or channel above"
            add(f"coupling{n}_weights.mem", coupling.fan_in, bits, what)
        else:
            values = layout.synapses(coupling, shape, coupling.weight).reshape(-1)
            what = f"weights of coupling {n}, row by row, {coupling.fan_in} lines a row"
            add(f"coupling{n}_weights.mem", 32, _float_bits(values), what)
        if whole is not None:
            width = _PARAMETER_WIDTH
            up, down, bias = whole.gains[n], whole.gains_down[n], whole.biases[n]
        else:
            width = 32
            each = network.gain_up(n), coupling.gain, coupling.offset
            up, down, bias = map(_float_bits, each)
        add(f"coupling{n}_scale_up.mem", width, np.ravel(up), f"scale of coupling {n}, upwards")
        add(f"coupling{n}_scale_down.mem", width, np.ravel(down), "the same, downwards")
        add(f"coupling{n}_bias.mem", width, np.ravel(bias), "biases of the layer above it")


def _add_vectors(
    network: StoredNetwork, whole: FixedNetwork | None, images: Array, labels: Array, add: Add
) -> None:
    pixels = np.asarray(images).reshape(len(images), -1)
    add("vectors_pixels.mem", 8, pixels.reshape(-1), f"{pixels.shape[1]} pixels a vector")
    runner = Runtime(network) if whole is None else whole
    trace = list(runner.trace(images))
    # (vectors, steps + 1, neurons)
    states = np.stack(
        [np.concatenate([layout.neurons(s) for s in state], axis=1) for state in trace], axis=1
    )
    width = 32 if whole is None else whole.state_bits + 1
    words = _float_bits(states) if whole is None else states
    steps = f"{network.steps + 1} time steps a vector, from t = 0"
    add("vectors_states.mem", width, words.reshape(-1), f"{states.shape[2]} neurons, {steps}")
    if network.binary:
        lines = runner.activity(states).reshape(-1, states.shape[2])
        add("vectors_activity.mem", states.shape[2], lines, f"one line a step, {steps}")
    expected = f"class predicted ({network.readout} readout), one a vector"
    add("vectors_expected.mem", 16, runner.predict(images), expected)
    add("vectors_labels.mem", 16, np.asarray(labels), "true class, one a vector")


def _numbers(network: StoredNetwork, whole: FixedNetwork | None) -> str:
    if whole is None:
        return (
            f"float32, as its 32 bits (IEEE 754): this network does not run in integers, "
            f"because {fixed.why_not(network)}"
        )
    return (
        f"scales and biases: two's complement of {_PARAMETER_WIDTH} bits in units of "
        f"2^-{PARAMETER_BITS}; states: unsigned, {whole.state_bits + 1} bits in units of "
        f"2^-{whole.state_bits}, from 0 to 2^{whole.state_bits}; a neuron is active from "
        f"2^{whole.state_bits - 1} on"
    )


def _float_bits(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32).reshape(np.shape(values)).view(np.uint32)


def _word_lines(words: Array, width: int) -> list[str]:
    digits, mask = -(-width // 4), (1 << width) - 1
    return [f"{int(word) & mask:0{digits}x}" for word in words]


def _bit_lines(rows: Array) -> list[str]:
    """Each row of bits as one number, bit 0 lowest."""
    packed = np.packbits(rows, axis=1, bitorder="little")[:, ::-1]
    digits = -(-rows.shape[1] // 4)
    return [row.tobytes().hex()[-digits:] for row in packed]
