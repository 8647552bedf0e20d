"""How much work a relaxation was: steps taken, and events where an engine counts them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """What an engine has done since it was made: the more silent the network, the less.

    Activities can be added and subtracted: the difference of two is what happened in between.

    Attributes:
        samples: number trained on or evaluated.
        steps: number taken, summed over samples; the others could change nothing.
        events: number of bits that changed; 0 for real activations.
        coincidences: number of momentum entries touched; 0 for real activations.
    """

    samples: int = 0
    steps: int = 0
    events: int = 0
    coincidences: int = 0

    def __add__(self, other: "Activity") -> "Activity":
        return Activity(**{k: v + getattr(other, k) for k, v in vars(self).items()})

    def __sub__(self, other: "Activity") -> "Activity":
        return Activity(**{k: v - getattr(other, k) for k, v in vars(self).items()})
