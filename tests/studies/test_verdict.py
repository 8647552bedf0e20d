"""Verdicts: Welch's t-test from means, deviations and n, and nothing without one."""

import pytest
from scipy import stats

from binep.report.figures import Spread
from binep.studies.verdict import judge, p_value
from binep.training.sections import PaperKeys


def test_p_is_that_of_welchs_test_on_the_numbers_themselves():
    ours, theirs = [1.26, 1.30, 1.31, 1.2], [1.14, 1.05, 1.22, 1.1, 1.19]
    other = Spread.of(theirs)
    _, expected = stats.ttest_ind(ours, theirs, equal_var=False)
    assert p_value(Spread.of(ours), other.mean, other.sd, other.n) == pytest.approx(expected)


def test_without_the_papers_deviation_its_mean_is_taken_as_exact():
    ours = [0.84, 0.82, 0.76]
    _, expected = stats.ttest_1samp(ours, 1.05)
    assert p_value(Spread.of(ours), 1.05, None) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ours", "paper", "expected"),
    [
        # What Welch's test says of the paper's cells, worked out from the seeds' errors.
        ([2.02, 1.92, 1.97, 1.96, 2.04], PaperKeys(test=2.14, test_sd=0.06), "better, p = 0.002"),
        ([0.90, 0.82, 0.88], PaperKeys(test=0.97, test_sd=0.03), "better, p = 0.028"),
        ([0.84, 0.82, 0.76], PaperKeys(test=1.05), "better, p = 0.010"),
        ([1.26, 1.30, 1.31], PaperKeys(test=1.14, test_sd=0.08), "worse, p = 0.011"),
        ([1.03, 1.03, 0.93, 0.92, 1.0], PaperKeys(test=0.85, test_sd=0.11), "p = 0.054"),
        ([1.5, 1.5], PaperKeys(test=1.0), "worse, p < 0.001"),
        ([1.31], PaperKeys(test=1.14, test_sd=0.08), "one seed"),
        ([9.0], PaperKeys(), ""),
        ([9.0, 9.1], PaperKeys(), ""),
    ],
)
def test_a_verdict_needs_a_significant_difference(
    ours: list[float], paper: PaperKeys, expected: str
):
    assert str(judge(Spread.of(ours), paper)) == expected


def test_what_is_not_finished_or_not_there_is_not_judged():
    paper = PaperKeys(test=1.0, test_sd=0.1)
    assert str(judge(Spread.of([5.0, 5.1]), paper, complete=False)) == "fewer epochs"
    assert str(judge(None, paper)) == "not run"
