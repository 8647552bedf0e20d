"""Whether our mean error differs from the paper's: a test, not a matter of opinion."""

from dataclasses import dataclass

from binep.report.figures import Spread
from binep.training.sections import PaperKeys

TRIALS = 5  # behind each of the paper's means
LEVEL = 0.05  # p below which two means are said to differ
BETTER, WORSE, SAME = "better", "worse", "no difference"
SINGLE, SHORT, MISSING = "one seed", "fewer epochs", "not run"


@dataclass(frozen=True)
class Verdict:
    """How ours stands to the paper's, and how likely that is by chance.

    Attributes:
        word: BETTER, WORSE or SAME after a test; SINGLE, SHORT or MISSING where there is none; ""
            where the paper has no number.
        p: two-sided, not corrected for the number of tests.
    """

    word: str
    p: float | None = None

    def __str__(self) -> str:
        if self.p is None:
            return self.word
        return f"p {_p(self.p)}" if self.word == SAME else f"{self.word}, p {_p(self.p)}"


def _p(value: float) -> str:
    if value < 0.001:
        return "< 0.001"
    return f"= {value:.3f}" if value < 0.1 else f"= {value:.2f}"


def judge(ours: Spread | None, paper: PaperKeys, complete: bool = True) -> Verdict:
    """Compare a mean over seeds with the paper's mean over five trials.

    Welch's t-test from means, sample standard deviations and n. Where the paper prints no standard
    deviation its mean is taken as exact: a one-sample t-test. One seed has no standard deviation
    and is never judged, nor is what was trained for fewer epochs than the paper's.

    >>> str(judge(Spread(1.29, 0.03, 3), PaperKeys(test=1.14, test_sd=0.08)))
    'worse, p = 0.011'
    >>> str(judge(Spread(1.29, None, 1), PaperKeys(test=1.14, test_sd=0.08)))
    'one seed'
    """
    if ours is None:
        return Verdict(MISSING)
    if not complete:
        return Verdict(SHORT)
    if paper.test is None:
        return Verdict("")
    if ours.sd is None:
        return Verdict(SINGLE)
    p = p_value(ours, paper.test, paper.test_sd)
    if p >= LEVEL:
        return Verdict(SAME, p)
    return Verdict(WORSE if ours.mean > paper.test else BETTER, p)


def p_value(ours: Spread, mean: float, sd: float | None, n: int = TRIALS) -> float:
    """Two-sided p of Welch's t-test; of the one-sample test where the other's sd is not known."""
    from scipy import stats

    assert ours.sd is not None
    if sd is None:
        t = (ours.mean - mean) / max(ours.sd / ours.n**0.5, 1e-12)
        return float(2 * stats.t.sf(abs(t), ours.n - 1))
    found = stats.ttest_ind_from_stats(ours.mean, ours.sd, ours.n, mean, sd, n, equal_var=False)
    return float(found.pvalue)
