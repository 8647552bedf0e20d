"""Plans: what a mini-batch goes through, as values that any backend can run.

The order of events of a way to learn is written once, in the method that makes its plan. A backend
runs the phases as it likes: one after the other, all of a sample in one kernel, or as one graph.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PhasePlan:
    """One relaxation of a mini-batch.

    Attributes:
        steps: how many at most.
        start: number of the phase at whose end this one begins; None: the initial state.
        beta: signed strength of the nudge; 0 in a free phase.
        nudge: "live" or "constant", see `binep.Nudge`.
    """

    steps: int
    start: int | None = None
    beta: float = 0.0
    nudge: str = "live"

    @property
    def nudged(self) -> bool:
        return self.beta != 0

    @property
    def constant(self) -> bool:
        return self.nudge == "constant"


@dataclass(frozen=True)
class ContrastPlan:
    """Equilibrium Propagation: `dL/dW = -(1/span) (f[plus] - f[minus])`, batch mean.

    Attributes:
        phases: in the order in which they are run; the first is the free one.
        plus, minus: numbers of the two phases that are contrasted.
        span: difference of their betas.
        margin: by how much the right class has to win, in all phases.
        tolerance: a phase may end after a step that moves no neuron by more than this.
    """

    phases: tuple[PhasePlan, ...]
    plus: int
    minus: int
    span: float
    margin: float = 0.0
    tolerance: float | None = None

    @property
    def free(self) -> PhasePlan:
        return self.phases[0]

    def handicap(self, target: Any) -> Any:
        """What drives the outputs against their one-hot target, like it; None without a margin."""
        return self.margin * (1 - 2 * target) if self.margin else None


@dataclass(frozen=True)
class BackwardPlan:
    """Backpropagation through time: a free phase whose last steps are differentiated.

    Attributes:
        settle: the steps before those; None if there are none.
        last: how many steps are differentiated.
        pulls_at: what the loss pulls at, "state" or "drive".
        tolerance: of `settle`, as above.
    """

    settle: PhasePlan | None
    last: int
    pulls_at: str
    tolerance: float | None = None


Plan = ContrastPlan | BackwardPlan
