"""How much of a relaxation an engine really had to do: steps taken, and events where it counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """What an engine has done since it was made; the less, the more silent the network is.

    Activities add up, and the difference of two is what happened in between.

    Attributes:
        samples: trained on or evaluated.
        steps: taken, added up over samples; the rest was known to change nothing.
        events: bits that changed; 0 where activations are real.
        coincidences: entries of momenta that were touched; 0 where activations are real.
    """

    samples: int = 0
    steps: int = 0
    events: int = 0
    coincidences: int = 0

    def __add__(self, other: "Activity") -> "Activity":
        return Activity(**{k: v + getattr(other, k) for k, v in vars(self).items()})

    def __sub__(self, other: "Activity") -> "Activity":
        return Activity(**{k: v - getattr(other, k) for k, v in vars(self).items()})
