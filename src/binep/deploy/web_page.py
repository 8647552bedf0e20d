"""Export to one HTML page: draw, relax, nudge and teach a network, without a server.

The page holds a compiled engine (`web/*.wasm`, the C of every export, made by `web/build.py`), the
network as a file for it, and some images of its test set. The engine computes
what `fixed` and `learning` define, bit for bit.
"""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from binep.deploy import layout
from binep.deploy.c_program import sizes
from binep.deploy.fixed import STATE_BITS, FixedNetwork
from binep.deploy.folder import write_files
from binep.deploy.learning import SEED, FixedRule
from binep.deploy.rules import BETA_BITS, PARAMETER_BITS
from binep.deploy.stored import Array, StoredNetwork
from binep.errors import BinepError

# What the engine has room for.
MOST = {"NEURONS": 65536, "LAYERS": 16, "LONGEST_ROW": 65536, "PHASES": 3}

# Betas and margins are words of 32 bits.
_MOST_FORCE = 2**31


def header() -> str:
    """The engine's network.h, its @NAMES@ replaced."""
    text = _part("c/network.h")
    numbers = {"SEED": SEED, "PARAMETER_BITS": PARAMETER_BITS, "BETA_BITS": BETA_BITS, **MOST}
    for name, value in numbers.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def write(
    network: StoredNetwork,
    to: Path,
    images: Array,
    labels: Array,
    learning: FixedRule,
    *,
    class_names: Sequence[str] | None = None,
    state_bits: int = STATE_BITS,
) -> list[Path]:
    """Write the page into a folder; returns its path.

    Args:
        images, labels: what can be picked on the page, uint8 (count, *image shape) and integers.
    """
    shape = network.image_shape
    if len(shape) != 3 or shape[0] != 1:
        raise BinepError(f"a page for samples of shape {shape}: allowed are grey images, (1, h, w)")
    whole = FixedNetwork(network, state_bits)
    names = class_names or [str(n) for n in range(network.classes)]
    facts = {
        "imageShape": list(network.image_shape),
        "layers": [list(shape) for shape in network.layer_shapes],
        "couplings": [_about_coupling(network, n) for n in range(len(network.couplings))],
        "classes": [str(name) for name in names],
        "perClass": network.per_class,
        "readout": network.readout,
        "steps": network.steps,
        "bits": network.bits,
        "betaOne": 2**BETA_BITS,
        "plan": {
            "phases": [
                {"steps": phase.steps, "start": phase.start, "constant": phase.constant}
                for phase in learning.rule.plan.phases
            ],
            "betas": learning.betas,
            "plus": learning.rule.plan.plus,
            "minus": learning.rule.plan.minus,
            "randomSign": learning.rule.random_sign,
            "margin": learning.rule.plan.margin,
        },
        "flipAbove": learning.flip_above,
        "labels": [int(label) for label in labels],
        "origin": network.origin,
    }
    contents = {
        "facts": as_script(facts),
        "wasm": _base64(engine(network)),
        "network": _base64(network_file(whole, learning)),
        "images": _base64(np.ascontiguousarray(images, np.uint8).tobytes()),
    }
    return write_files(to, {"playground.html": fill(contents)})


def as_script(facts: Mapping[str, Any]) -> str:
    """JSON that may stand in a page: nothing in it is markup."""
    return json.dumps(facts).replace("<", "\\u003c")


def fill(contents: Mapping[str, str]) -> str:
    """The page around facts, engine, network and images, by the ids of their elements."""
    parts = {"style": "style.css", "engine": "engine.js", "script": "playground.js"}
    values = {**{name: _part(file) for name, file in parts.items()}, **contents}
    names = "|".join(name.upper() for name in values)
    # At one go: what is put in may hold such a name itself.
    return re.sub(f"@({names})@", lambda found: values[found[1].lower()], _part("page.html"))


def contents_of(page: str) -> dict[str, str]:
    """What `fill` was given for a page."""
    names = ("facts", "wasm", "network", "images")
    found = {name: re.search(rf'<script[^>]* id="{name}">(.*?)</script>', page) for name in names}
    return {name: match[1] for name, match in found.items() if match}


def engine(network: StoredNetwork) -> bytes:
    """The compiled engine that runs a network."""
    name = "engine_bits.wasm" if network.bits else "engine.wasm"
    return (resources.files("binep") / "deploy" / "web" / name).read_bytes()


def network_file(whole: FixedNetwork, learning: FixedRule) -> bytes:
    """The network as `web/c/web.c` opens it: words of 32 bits, then the arrays they name."""
    network, rule = whole.network, learning.rule
    _check_room(network, learning)
    initial = int(whole.initial((1,))[0])
    words = [
        len(network.couplings),
        len(network.turns),
        *(network.classes, network.per_class),
        network.per_class if network.readout == "average" else 1,
        network.steps,
        int(network.initial_state >= network.threshold) if network.bits else initial,
        whole.one.bit_length() - 1,
        *(learning.momentum_bits, rule.plan.plus, rule.plan.minus, learning.direction),
        *(int(rule.random_sign), learning.pixel_shift, learning.margin),
    ]
    phases = [
        (phase.steps, -1 if phase.start is None else phase.start, int(phase.constant), beta)
        for phase, beta in zip(rule.plan.phases, learning.betas, strict=True)
    ]
    # What is left of the table stays where the last phase ended, and takes no step.
    phases += [(0, len(phases) - 1, 1, 0)] * (MOST["PHASES"] - len(phases))
    words += [number for phase in phases for number in phase]
    words += [math.prod(shape) for shape in network.layer_shapes]
    arrays, shapes = list[bytes](), network.shapes
    references = list[tuple[int, int]]()
    for n, coupling in enumerate(network.couplings):
        words += sizes(coupling, shapes[n])
        gains = [np.ravel(each).astype("<i8").tobytes() for each in whole.parameters(n)]
        rows = layout.pack(layout.synapses(coupling, shapes[n], coupling.signs) > 0)
        step = np.array(learning.bias_step[n], "<i8").tobytes()
        for values in (rows.astype("<u4").tobytes(), *gains):
            references.append((len(words), len(arrays)))
            words.append(0)
            arrays.append(values)
        words += [learning.flip_above[n], learning.half_life[n]]
        references.append((len(words), len(arrays)))
        words.append(0)
        arrays.append(step)
    begins, at = list[int](), _aligned(4 * len(words))
    for values in arrays:
        begins.append(at)
        at += _aligned(len(values))
    for place, array in references:
        words[place] = begins[array]
    parts = [np.array(words, "<i8").astype("<u4").tobytes(), *arrays]
    return b"".join(part.ljust(_aligned(len(part)), b"\0") for part in parts)


def _about_coupling(network: StoredNetwork, n: int) -> dict[str, object]:
    coupling = network.couplings[n]
    return {
        "kind": coupling.kind,
        "below": coupling.below,
        "above": coupling.above,
        "synapses": coupling.fan_in,
        "words": layout.words(coupling.fan_in),
        "kernel": coupling.kernel,
    }


def _check_room(network: StoredNetwork, learning: FixedRule) -> None:
    found = {
        "NEURONS": sum(math.prod(shape) for shape in network.layer_shapes),
        "LAYERS": len(network.couplings),
        "LONGEST_ROW": max(coupling.fan_in for coupling in network.couplings),
        "PHASES": len(learning.rule.plan.phases),
    }
    for name, count in found.items():
        if count > MOST[name]:
            raise BinepError(
                f"a page for {count:,} {name.lower().replace('_', ' ')}: allowed are at most "
                f"{MOST[name]:,}"
            )
    most = max(learning.margin, *map(abs, learning.betas))
    if most >= _MOST_FORCE:
        raise BinepError(
            f"a beta or margin of {most / 2**BETA_BITS:g} on a page: allowed is less than "
            f"{_MOST_FORCE / 2**BETA_BITS:g}"
        )


def _aligned(length: int) -> int:
    return -(-length // 8) * 8


def _part(name: str) -> str:
    return (resources.files("binep") / "deploy" / "web" / name).read_text("utf-8")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
