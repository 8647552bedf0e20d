"""`binep.Classifier` is an estimator of scikit-learn."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import binep

SMALL = {"hidden": (32,), "epochs": 8, "random_state": 0}


@parametrize_with_checks([binep.Classifier(hidden=(64,), epochs=12, batch_size=8)])
def test_conventions(estimator, check):
    check(estimator)


def test_digits_are_read_as_well_as_by_logistic_regression():
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X, y, random_state=0)
    theirs = LogisticRegression(max_iter=5000).fit(parts[0], parts[2]).score(parts[1], parts[3])
    ours = binep.Classifier(random_state=0).fit(parts[0], parts[2]).score(parts[1], parts[3])
    assert ours >= theirs


def test_a_seed_fixes_it_and_binary_neurons_learn_too():
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    one, same = (binep.Classifier(**SMALL).fit(X, y).predict_proba(X) for _ in range(2))
    assert np.array_equal(one, same)
    bits = binep.Classifier((256,), "binary", 10, random_state=0).fit(X, y)
    assert bits.score(X, y) > 0.8


def test_it_works_in_pipelines_and_searches():
    X, y = load_digits(n_class=3, return_X_y=True)
    model = make_pipeline(MinMaxScaler(), binep.Classifier(**SMALL))
    search = GridSearchCV(model, {"classifier__hidden": [(8,), (32,)]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.9


def test_partial_fit_needs_all_classes_once():
    X, y = load_digits(n_class=3, return_X_y=True)
    model = binep.Classifier(**SMALL)
    with pytest.raises(binep.BinepError, match="needs classes"):
        model.partial_fit(X[:50], y[:50])
    for _ in range(5):
        model.partial_fit(X[:200], y[:200], classes=[0, 1, 2])
    assert model.score(X[200:], y[200:]) > 0.9
    with pytest.raises(binep.BinepError, match="label 7"):
        model.partial_fit(X[:2], [0, 7])
