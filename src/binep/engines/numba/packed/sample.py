"""All that changes while one sample relaxes, described once: `STATE` and `WORKSPACE`.

A sample's neurons form one row, layer after layer; a layer of images is channels-last, each
position padded to whole words of 64 channels. The state is one row of memory, so that a phase
starts from the end of another by copying that row.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from binep.engines.numba.counting import LEVELS
from binep.engines.numba.packed.layout import Layout

Array = Any

# Each array's type, and how many entries it has: a key of `_sizes`.
STATE = {
    # Drives from below and from above; both together, and states, where neurons have any.
    "up": (np.float32, "cells"),
    "down": (np.float32, "cells"),
    "drive": (np.float32, "stepped"),
    "s": (np.float32, "stepped"),
    # Packed activity, and how many bits of each layer are 1.
    "bits": (np.uint64, "words"),
    "active": (np.int64, "layers"),
    # Positive synapses from active neurons below, a map position and channel; active bits in the
    # window of a map position; positive synapses from active neurons above of a dense coupling.
    "counts": (np.int32, "counts"),
    "present": (np.int32, "maps"),
    "down_counts": (np.int32, "down_counts"),
    # The same for a conv coupling, where scales stand inside the sum: `down = down_sum -
    # down_offset`, with one offset a position.
    "down_sum": (np.float64, "conv_cells"),
    "down_offset": (np.float64, "conv_words"),
    # The map position that each neuron's pool has chosen; the one from which it now contributes to
    # `down_sum`, or -1; the bits of those that do.
    "switches": (np.int32, "conv_cells"),
    "placed": (np.int32, "conv_cells"),
    "sent_bits": (np.uint64, "conv_words"),
    # Of layers in turn: those that have heard something since their last one.
    "stale": (np.int64, "layers"),
}
WORKSPACE = {
    # What the input exerts on the first layer before its first step; best sums of pools.
    "ahead": (np.float32, "cells"),
    # The bits that changed in the last step; how many, a layer.
    "flipped": (np.uint64, "words"),
    "event_count": (np.int64, "layers"),
    # Whether a word of neurons is stepped every time; up to which step one that rests has been
    # taken, `FOREVER` if it has come to a standstill; layers whose drives are changing.
    "awake": (np.bool_, "words"),
    "reached": (np.int64, "words"),
    "fresh": (np.int64, "layers"),
    # The states of the outputs, where a phase starts or, of bits alone, after their last turn;
    # their target, and what draws bits alone to it.
    "rest": (np.float32, "top"),
    "target": (np.float32, "top"),
    "pull": (np.float32, "top"),
    # Pixels that are not 0, see `dense_events.drive_from_pixels`.
    "digits": (np.int64, "digits"),
    # Of counting rows: counters, and which rows to add, inverted or not.
    "planes": (np.uint64, "planes"),
    "rows": (np.int64, "listed"),
    "inverted": (np.uint64, "listed"),
    # Of convolutions: changed neurons and moves, in order of position; changed map positions.
    "tags": (np.int64, "tags"),
    "flags": (np.uint64, "cells"),
    "bounds": (np.int64, "bounds"),
    "filled": (np.int64, "positions"),
    "dirty": (np.bool_, "positions"),
    "amounts": (np.float64, "moves"),
    "twice": (np.float64, "moves"),
    # States of a word before a step.
    "before": (np.float32, "word"),
}
Sample: Any = namedtuple("Sample", ["state", *STATE, *WORKSPACE])

_ALIGNED = 8  # words between one array of the state and the next start on a new cache line


def _sizes(layout: Layout, bits_alone: bool) -> dict[str, int]:
    wiring, cells = layout.wiring, layout.cells
    windows = [
        int(kernel**2 * layout.below(n).words * 64) for n, kernel in enumerate(wiring.kernel)
    ]
    largest = max(layer.cells for layer in layout.layers)
    # A neuron above a convolution may move from one map position to another.
    moves = 2 * largest if layout.hidden_conv else 0
    positions = int(max(wiring.map_rows * wiring.map_cols))
    widest = int(max(*wiring.up_words, *wiring.down_words))
    return {
        "cells": cells,
        "stepped": 0 if bits_alone else cells,
        "words": cells // 64,
        "layers": len(layout.layers),
        "counts": layout.counts,
        "maps": layout.maps,
        "down_counts": layout.down_counts,
        "conv_cells": cells if layout.hidden_conv else 0,
        "conv_words": cells // 64 if layout.hidden_conv else 0,
        "top": layout.layers[-1].cells,
        "digits": 1 + layout.input.cells,
        "planes": (2 * LEVELS + 1) * widest,
        "listed": 8 + max(layout.input.cells, *windows, largest, moves),
        "tags": max(cells, moves),
        "bounds": 2 + max(positions, *(layer.places for layer in layout.layers)),
        "positions": positions,
        "moves": moves,
        "word": 64,
    }


def new_sample(layout: Layout, bits_alone: bool) -> Any:
    """Room for a sample; less where neurons have no state but their bit."""
    sizes, spans, end = _sizes(layout, bits_alone), {}, 0
    for name, (kind, size) in STATE.items():
        words = -(-sizes[size] * np.dtype(kind).itemsize // 8)
        spans[name] = slice(end, end + words)
        end += -(-words // _ALIGNED) * _ALIGNED + _ALIGNED
    state = np.zeros(end, np.uint64)
    views = [state[spans[k]].view(kind)[: sizes[size]] for k, (kind, size) in STATE.items()]
    return Sample(
        state, *views, *(np.zeros(sizes[size], kind) for kind, size in WORKSPACE.values())
    )
