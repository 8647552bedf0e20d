"""What somebody might hand to binep: values of every kind, and changes to things that were good."""

import copy
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, -(10**400), 2**31, 2**63, 10**6]),
    st.floats(),
    st.floats(-2, 2),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(codec=None), max_size=8),
    st.sampled_from(
        [
            *("", "\x00", "\x1b[2J", "\x7f", "../../etc/passwd", "a" * 300, "\ud800", "nan"),
            *("<script>alert(1)</script>", "@NETWORK@", "binary", "dense", "digits", "real"),
        ]
    ),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside of nested tables and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in inside:
        found.append((*where, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*where, key))
    return found


@st.composite
def altered(draw: st.DrawFn, good: Any, values: st.SearchStrategy[Any] = VALUES) -> Any:
    """Nested tables with some values replaced, removed, doubled or added."""
    found = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(found) or [("new",)]))
        table = found
        for key in path:
            table = table[key]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "nudge"]))
        value = table[last] if isinstance(table, list) or last in table else None
        if change == "remove":
            del table[last]
        elif change == "add" and isinstance(table, dict):
            table[draw(TEXTS)] = draw(values)
        elif change == "nudge" and type(value) in (int, float):
            table[last] = draw(st.sampled_from([-value, value + 1, value * 2, value // 2, [value]]))
        else:
            table[last] = draw(values)
    return found


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes with some changed, cut off, doubled or put in."""
    found = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        # Beginnings say what is to come.
        at = draw(st.sampled_from([at, min(at, 200), min(at, 20)]))
        change = draw(st.sampled_from(["flip", "set", "cut", "insert", "double", "number"]))
        if change == "flip" and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "set":
            found[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif change == "cut":
            del found[at : at + draw(st.integers(1, 64))]
        elif change == "insert":
            found[at:at] = draw(st.binary(max_size=16))
        elif change == "double":
            found[at:at] = found[at : at + draw(st.integers(1, 64))]
        else:
            width = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1)]))
            found[at : at + width] = number.to_bytes(
                width, draw(st.sampled_from(["little", "big"]))
            )
    return bytes(found)
