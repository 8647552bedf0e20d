"""Export to C: the program of `c/` and a network written as data for it.

Everything that is code stands in `c/`; what is written here are constants. A network that can runs
in integers (`fixed`), any other in float32.
"""

from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from binep.core.plan import PhasePlan
from binep.deploy import fixed, layout
from binep.deploy.fixed import STATE_BITS, Agreement, Decisions, FixedNetwork
from binep.deploy.folder import readme, write_files
from binep.deploy.learning import FixedRule
from binep.deploy.relaxing import Relaxer
from binep.deploy.rules import BETA_BITS, PARAMETER_BITS
from binep.deploy.runtime import Runtime
from binep.deploy.stored import Array, Shape, StoredCoupling, StoredNetwork
from binep.errors import BinepError

_COLUMNS = 8


def write(
    network: StoredNetwork,
    to: Path,
    images: Array,
    labels: Array,
    *,
    state_bits: int = STATE_BITS,
    learning: FixedRule | None = None,
) -> list[Path]:
    """Write the program, its test vectors and a README into a folder; returns the files.

    Args:
        images, labels: of the test vectors, uint8 (count, *image shape) and integers (count,).
        learning: with it the program can go on training.
    """
    reason = fixed.why_not(network)
    if learning is not None and reason is not None:
        raise BinepError(f"learning in C needs a network that runs in integers: {reason}")
    if reason is None:
        model = whole = FixedNetwork(network, state_bits)
        agreement = fixed.compare_on_images(whole, images)
        expected, arithmetic = agreement.classes, _in_integers(whole, agreement)
    else:
        model, whole = Runtime(network), None
        expected, arithmetic = model.predict(images), _in_floats(reason)
    files: dict[str, str | bytes] = {
        "network.h": _header(network, whole, learning),
        "network.c": "\n".join(_data(model, learning)) + "\n",
        "vectors.bin": vectors(images, labels, expected),
        "README.md": _readme(network, len(images), arithmetic, learning),
    }
    names = ["binep.h", "rules.h", "main.c", "Makefile"]
    if whole is None:
        names += ["float.c"]
    else:
        names += ["fixed.h", "fixed.c", "bits.c" if network.bits else "states.c"]
    names += ["learn.c"] if learning is not None else []
    folder = resources.files("binep") / "deploy" / "c"
    files |= {name: (folder / name).read_bytes() for name in names}
    return write_files(to, files)


def vectors(images: Array, labels: Array, expected: Array) -> bytes:
    """The file of test vectors that `main.c` documents."""
    pixels = np.ascontiguousarray(images, np.uint8).reshape(len(images), -1)
    head = b"BEPV" + np.array(pixels.shape, "<u4").tobytes()
    classes = np.stack([labels, expected], 1).astype("<u2")
    lines = np.concatenate([classes.view(np.uint8).reshape(len(images), 4), pixels], 1)
    return head + lines.tobytes()


# --- the header ---------------------------------------------------------------------------------


def _header(network: StoredNetwork, whole: FixedNetwork | None, learning: FixedRule | None) -> str:
    couplings, layers = network.couplings, network.layer_shapes
    counts = [int(np.prod(shape)) for shape in layers]
    rows = [coupling.fan_in for coupling in couplings]
    names: dict[str, object] = {
        "LAYERS": len(layers),
        "COUPLINGS": len(couplings),
        "INPUTS": int(np.prod(network.input_shape)),
        "CHANNELS": network.image_shape[0],
        "NEURONS": sum(counts),
        "WORDS": sum(layout.words(count) for count in counts),
        "ROW_WORDS": max(layout.words(row) for row in rows),
        "LONGEST_ROW": max(rows),
        "OUTPUTS": network.classes * network.per_class,
        "CLASSES": network.classes,
        "PER_CLASS": network.per_class,
        "READ": network.per_class if network.readout == "average" else 1,
        "STEPS": network.steps,
        "TURNS": len(network.turns),
        "HOPFIELD": int(network.bits),
        "LEARNING": int(learning is not None),
    }
    if whole is not None:
        names |= {
            "INTEGERS": 1,
            "PARAMETER_BITS": PARAMETER_BITS,
            "ONE": _long(whole.one) if network.bits else whole.one,
            "THRESHOLD": _long(whole.half) if network.bits else whole.half,
        }
        if network.bits:
            state = "int64_t"
            names["INITIAL_BIT"] = int(network.initial_state >= network.threshold)
        else:
            state = "int32_t"
            names |= {
                "STATE_BITS": whole.state_bits,
                "INITIAL_STATE": int(whole.initial((1,))[0]),
                "PRINT_STATE": '"%lx"',
                "AS_PRINTED(s)": "((unsigned long)(s))",
            }
        types = [f"typedef {state} binep_state;", "typedef int64_t binep_parameter;"]
    else:
        names |= {
            "INTEGERS": 0,
            "ONE": _float(1),
            "BINARY": int(network.binary),
            "ENERGY": int(network.dynamics == "energy"),
            "NORMALISED": int(network.mean is not None),
            "INITIAL_STATE": _float(network.initial_state),
            "THRESHOLD": _float(network.threshold),
            "SIGMA": _float(network.sigma),
            "SLOPE": _float(1 / (2 * network.sigma)),
            "KEEP": _float(1 - network.dt),
            "TAKE": _float(network.dt),
            "PRINT_STATE": '"%a"',
            "AS_PRINTED(s)": "((double)(s))",
        }
        wide = "double" if network.binary else "float"
        types = [
            "typedef float binep_state;",
            "typedef float binep_parameter;",
            f"typedef {wide} binep_wide;",
        ]
        if network.mean is not None:
            channels = network.image_shape[0]
            types += [f"extern const float binep_{each}[{channels}];" for each in ("mean", "std")]
    if learning is not None:
        bits, plan = learning.momentum_bits, learning.rule.plan
        width = next(width for width in (8, 16, 32) if bits <= width)
        names |= {
            "MOMENTUM_BITS": bits,
            "BETA_BITS": BETA_BITS,
            "MARGIN": _long(learning.margin),
            "PHASES": len(plan.phases),
            "PLUS": plan.plus,
            "MINUS": plan.minus,
            "DIRECTION": learning.direction,
            "RANDOM_SIGN": int(learning.rule.random_sign),
            "PIXEL_SHIFT": learning.pixel_shift,
            "SEED": f"{learning.seed}u",
        }
        types.append(f"typedef int{width}_t binep_momentum;")
    stored = "" if learning is not None else "const"
    lines = [
        "/* Sizes and constants of this network. Generated: see README.md. */",
        "#ifndef BINEP_NETWORK_H",
        "#define BINEP_NETWORK_H",
        "",
        "#include <stdint.h>",
        "",
        *(f"#define BINEP_{name} {value}" for name, value in names.items()),
        "/* Weights and biases stay as they are, unless they learn. */",
        f"#define BINEP_STORED {stored}".rstrip(),
        "#define BINEP_TABLE const",
        "",
        *types,
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


# --- the data -----------------------------------------------------------------------------------


def _data(model: Relaxer, learning: FixedRule | None) -> Iterator[str]:
    """The lines of network.c."""
    network, whole = model.network, isinstance(model, FixedNetwork)
    kind, number = ("int64_t", _long) if whole else ("float", _float)
    stored = "static" if learning is not None else "static const"
    yield "/* The parameters of this network. Generated: see README.md. */"
    yield "#include <stddef.h>\n"
    yield '#include "binep.h"\n'
    shapes = network.shapes
    for n, coupling in enumerate(network.couplings):
        values = coupling.signs if coupling.binary else coupling.weight
        rows = layout.synapses(coupling, shapes[n], values)
        if coupling.binary:
            words = map(_word, layout.pack(rows > 0).flat)
            yield from _array(f"{stored} uint32_t weights{n}", words)
        else:
            yield from _array(f"static const float weights{n}", map(_float, rows.flat))
        for name, values in zip(("gain", "gain_down", "bias"), model.parameters(n), strict=True):
            kept = stored if name == "bias" else "static const"
            yield from _array(f"{kept} {kind} {name}{n}", map(number, np.ravel(values)))
    if not whole and network.mean is not None and network.std is not None:
        yield from _array("const float binep_mean", map(_float, network.mean))
        yield from _array("const float binep_std", map(_float, network.std))
    if learning is not None:
        for n, coupling in enumerate(network.couplings):
            yield f"static binep_momentum momenta{n}[{coupling.above * coupling.fan_in}];"
        each = zip(learning.flip_above, learning.half_life, learning.bias_step, strict=True)
        rates = (
            f"{{momenta{n}, {tau}, {life}u, {_long(step)}}}"
            for n, (tau, life, step) in enumerate(each)
        )
        yield from _array("const struct binep_rates binep_rates", rates)
        phases = (
            f"{{{phase.steps}, {-1 if phase.start is None else phase.start}, "
            f"{int(phase.constant or not phase.nudged)}, {_long(beta)}}}"
            for phase, beta in zip(learning.rule.plan.phases, learning.betas, strict=True)
        )
        yield from _array("const struct binep_phase binep_phases", phases)
    yield "const struct binep_layer binep_layers[] = {"
    first = first_word = 0
    for shape in network.layer_shapes:
        count = int(np.prod(shape))
        words = layout.words(count)
        yield f"    {{{first}, {count}, {first_word}, {words}}},"
        first, first_word = first + count, first_word + words
    yield "};\n"
    yield "const struct binep_coupling binep_couplings[] = {"
    for n, coupling in enumerate(network.couplings):
        numbers = ", ".join(map(str, sizes(coupling, shapes[n])))
        weights = f"weights{n}, NULL" if coupling.binary else f"NULL, weights{n}"
        yield f"    {{{numbers}, {weights}, gain{n}, gain_down{n}, bias{n}}},"
    yield "};"


def sizes(coupling: StoredCoupling, below_shape: Shape) -> list[int]:
    """The numbers of a `struct binep_coupling`, in its order."""
    conv = coupling.kind == "conv"
    rows, cols = below_shape[1:] if conv else (1, 1)
    map_cols = coupling.map_shape(below_shape)[2] if conv else 1
    out_rows, out_cols = coupling.above_shape(below_shape)[1:] if conv else (1, 1)
    return [
        int(conv),
        *(coupling.below, coupling.above, rows, cols),
        *(coupling.kernel, coupling.padding, coupling.pool),
        *(map_cols, out_rows, out_cols),
        *(coupling.fan_in, layout.words(coupling.fan_in)),
        coupling.scale.size if coupling.binary else 1,
    ]


def _array(name: str, items: Iterable[str]) -> Iterator[str]:
    yield f"{name}[] = {{"
    words = list(items)
    for begin in range(0, len(words), _COLUMNS):
        yield f"    {', '.join(words[begin : begin + _COLUMNS])},"
    yield "};\n"


def _word(value: int) -> str:
    return f"0x{value:08x}u"


def _long(value: int) -> str:
    return f"INT64_C({int(value)})"


def _float(value: float) -> str:
    """A float32 exactly, in hexadecimal."""
    return f"{float(np.float32(value)).hex()}f"


# --- the README ---------------------------------------------------------------------------------


def _readme(network: StoredNetwork, count: int, arithmetic: str, learning: FixedRule | None) -> str:
    values = {
        "COUNT": str(count),
        "ARITHMETIC": arithmetic,
        "LEARNING": "" if learning is None else _about_learning(learning),
    }
    return readme("c", network, values)


def _in_floats(reason: str | None) -> str:
    return (
        f"This network runs in float32 (`float.c`), not in integers: {reason}. The order of "
        "arithmetic is the training network's, but sums of real numbers run one by one, so that "
        "states agree to rounding only. Compile without fused multiply-add, as the Makefile does."
    )


def _in_integers(whole: FixedNetwork, agreement: Agreement) -> str:
    lines = [
        "This network runs in integers (`fixed.c`); no floating point is used in its relaxation.",
        "",
        "| value | width | unit |",
        "|---|---|---|",
        "| sum over synapses | 32 bits, signed | 1 (1/255 from pixels: its scale is divided) |",
        f"| scale, bias, drive | 64 bits, signed | 2^-{PARAMETER_BITS} |",
        *(_steps_of_bits() if whole.network.bits else _steps_of_states(whole)),
        "For a convolution the scales of the channels stand inside the sum that goes down: they",
        "are added up as integers, exactly.",
        "",
        f"Test vectors on which this gives another class than the float32 network: "
        f"{agreement.differ} of {len(agreement.classes)}. Bits that neurons send otherwise, at any "
        f"step of any vector: {agreement.bits_differ} of {agreement.bits}.",
        "",
        "Whether a neuron at rest is on, `drive >= 1/2`, compared with float32 for every sum that",
        "it can receive (below a convolution, where what comes down is not one integer, without",
        "it):",
        "",
        "| layer | neurons compared | cases | decided otherwise by float32's rounding |",
        "|---|---|---|---|",
        *(_decisions(each) for each in fixed.compare_decisions(whole)),
    ]
    return "\n".join(lines)


def _steps_of_bits() -> list[str]:
    return [
        "| state | 1 bit | |",
        "",
        "A step is a sweep: the odd layers move, then the even ones. A neuron that moves is 1 from",
        "then on where its drive is at least 1/2, else 0; nothing else of it is kept. A phase ends",
        "with the first sweep in which no bit has changed. Outputs are read from their drives.",
    ]


def _steps_of_states(whole: FixedNetwork) -> list[str]:
    return [
        f"| drive on a state | 32 bits, signed, kept in [-1, 2] | 2^-{whole.state_bits} |",
        f"| state | {whole.state_bits + 1} bits of 32, in [0, 1] | 2^-{whole.state_bits} |",
        "",
        "A step is `s = floor((s + drive) / 2)`, kept in [0, 1]; a neuron sends 1 where",
        "`s >= 1/2`. A drive beyond -1 or 2 takes any state to 0 or 1 at once, so keeping it there",
        "changes nothing.",
    ]


def _decisions(found: Decisions) -> str:
    differ = (
        f"{found.differ}, all within {found.margin:.1e} of the threshold" if found.differ else "0"
    )
    return f"| {found.layer} | {found.neurons} | {found.cases} | {differ} |"


def _about_phase(n: int, phase: PhasePlan) -> str:
    begins = "t = 0" if phase.start is None else f"the end of phase {phase.start}"
    how = f"beta {phase.beta:g}, {phase.nudge} nudge" if phase.nudged else "free"
    return f"- phase {n}: {phase.steps} steps from {begins}, {how}"


def _about_margin(margin: float) -> Iterator[str]:
    if margin:
        yield (
            f"- in all phases the drive of the right class's outputs is lowered by {margin:g}, "
            "that of all others raised by it"
        )


def _about_learning(learning: FixedRule) -> str:
    plan = learning.rule.plan
    return "\n".join(
        [
            "",
            "## Learning",
            "",
            "`binep_learn(image, label)` goes on training, an image at a time (`learn.c`): weights",
            "and biases are then variables, and every synapse has a momentum of "
            f"{learning.momentum_bits} bits.",
            "",
            *(_about_phase(n, phase) for n, phase in enumerate(plan.phases)),
            *_about_margin(plan.margin),
            f"- phase {plan.plus} is contrasted with phase {plan.minus}"
            + (", all betas times a sign drawn for each image" * learning.rule.random_sign),
            "- momentum: one image's gradient is added; from pixels "
            f"{8 - learning.pixel_shift} bits of each",
            f"- a weight flips above a momentum of {learning.flip_above}, one number a coupling",
            f"- momenta are halved every {learning.half_life} images: Bop's decay",
            f"- biases move by {learning.bias_step} units for each neuron that changed",
            "- scales stay as they are",
            "",
            "`binep vectors.bin learn OUT` learns all vectors and writes what was learnt.",
        ]
    )
