"""In which order the layers of a network move: all at once, or in turn."""

UPDATES = ("simultaneous", "alternating")
# Dynamics that leave no choice.
ONLY = {"energy": "simultaneous", "hopfield": "alternating"}


def turns(updates: str, layers: int) -> list[range]:
    """Which layers move together in a step, by number from 0, and in which order.

    >>> turns("simultaneous", 3), turns("alternating", 3), turns("alternating", 1)
    ([range(0, 3)], [range(0, 3, 2), range(1, 3, 2)], [range(0, 1, 2)])
    """
    if updates == "simultaneous":
        return [range(layers)]
    return [turn for turn in (range(0, layers, 2), range(1, layers, 2)) if turn]
