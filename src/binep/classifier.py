"""A classifier with scikit-learn's conventions: fit, predict, score, in pipelines and searches."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch

from binep.core.couplings import Dense
from binep.core.gradients import EquilibriumPropagation
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.optim import Optimizers, assign_optimizers
from binep.data.dataset import Dataset, Split
from binep.errors import BinepError, choose
from binep.training.fit import train
from binep.training.progress import Watcher

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise BinepError("binep.Classifier needs scikit-learn: pip install 'binep[sklearn]'") from None

ACTIVATIONS = ("real", "binary")


class Classifier(ClassifierMixin, BaseEstimator):
    """Binary synapses, trained by Equilibrium Propagation, as an estimator of scikit-learn.

    Features are brought to mean 0 and deviation 1. Weights are one bit each, `W = scale * signs`.

    Args:
        hidden: neurons of each hidden layer.
        activations: "real", or "binary" for neurons that send one bit.
        epochs: of `fit`; `partial_fit` takes one.
        batch_size: samples in a mini-batch.
        random_state: seed of the weights and of the order of samples, or a numpy generator.
        verbose: whether to show progress.

    After `fit` it has `classes_`, `network_` (a `binep.Network`), `optimizers_` and `metrics_`, one
    line per epoch.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> Classifier(hidden=(32,), epochs=10, random_state=0).fit(X, y).predict(X).shape
    (150,)
    """

    def __init__(
        self,
        hidden: Sequence[int] = (512,),
        activations: str = "real",
        epochs: int = 20,
        batch_size: int = 16,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activations = activations
        self.epochs = epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train a fresh network on samples, (count, features), and their labels."""
        choose(self.activations, ACTIVATIONS, "activations")
        X, y = self._checked(X, y, reset=True)
        self._begin(X, unique_labels(y))
        self._train(X, y, self.epochs)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on training for one epoch; the first call has to know all `classes`."""
        choose(self.activations, ACTIVATIONS, "activations")
        first = not hasattr(self, "network_")
        X, y = self._checked(X, y, reset=first)
        if first:
            if classes is None:
                raise BinepError("the first partial_fit needs classes: all labels there will be")
            self._begin(X, np.unique(classes))
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            allowed = ", ".join(map(str, self.classes_))
            raise BinepError(f"label {unknown[0]}: allowed are {allowed}")
        self._train(X, y, 1)
        return self

    def decision_function(self, X: Any) -> Any:
        """Scores of the classes, (count, classes); with two classes their difference, (count,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Any:
        """Scores as shares of one, (count, classes): a softmax of ten times the scores.

        They rank classes as the scores do; they are not calibrated.
        """
        powers = np.exp(10 * self._scores(X))
        return powers / powers.sum(1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """The class of the highest score, (count,)."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    # --- inside

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
        check_classification_targets(y)
        return X, y

    def _begin(self, X: Any, classes: Any) -> None:
        """A fresh network, and how samples are scaled for it."""
        if len(classes) < 2:
            raise BinepError(f"one class only, {classes[0]}: allowed are at least 2 classes")
        self.classes_, self.metrics_ = classes, []
        self.mean_, self.deviation_ = X.mean(0), X.std(0)
        self.deviation_[self.deviation_ == 0] = 1
        self._random = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(self._seed())
        binary = self.activations == "binary"
        per_class = 10 if binary else 1
        sizes = [X.shape[1], *self.hidden, len(classes) * per_class]
        chain = [
            Dense(below, above, learn_scale=not binary, generator=generator)
            for below, above in pairwise(sizes)
        ]
        self.network_ = Network(
            (X.shape[1],),
            chain,
            Heaviside() if binary else HardSigmoid(),
            "energy" if binary else "prototypical",
            per_class,
            len(classes),
        )
        self.learning_ = _learning(binary, len(chain))
        self.optimizers_ = _optimizers(self.network_, binary)

    def _train(self, X: Any, y: Any, epochs: int) -> None:
        numbers = torch.from_numpy(np.searchsorted(self.classes_, y))
        split = Split(self._scaled(X), numbers)
        few = Split(split.images[:1], split.labels[:1])  # nothing is kept for testing
        lines = train(
            self.network_,
            Dataset("fit", split, few, len(self.classes_)),
            self.learning_,
            self.optimizers_,
            epochs=epochs,
            batch_size=min(self.batch_size, len(X)),
            seed=self._seed(),
            watcher=None if self.verbose else Watcher(),
        )
        self.metrics_ += lines

    def _scaled(self, X: Any) -> torch.Tensor:
        return torch.from_numpy(((X - self.mean_) / self.deviation_).astype(np.float32))

    def _scores(self, X: Any) -> Any:
        check_is_fitted(self, "network_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        parts = self._scaled(X).split(500)
        return torch.cat([self.network_(part) for part in parts]).double().numpy()

    def _seed(self) -> int:
        return int(self._random.randint(2**31 - 1))


def _learning(binary: bool, couplings: int) -> EquilibriumPropagation:
    """Steps that let a network of so many couplings settle; both signs where neurons are real."""
    if binary:
        return EquilibriumPropagation(20 + 10 * (couplings - 2), 10, 2.0)
    return EquilibriumPropagation(30 * max(1, 2 * couplings - 3), 10, 0.3, sign="centered")


def _optimizers(network: Network, binary: bool) -> Optimizers:
    """Rates that are larger for the lower couplings, as in the recipes of the digits."""
    below = len(network.couplings) - 1
    if binary:
        return assign_optimizers(network, gamma=1e-4, tau=[*[1e-4] * below, 3e-5], lr_bias=1e-7)
    falling = [10.0 ** -min(n, 1) for n in range(below + 1)]
    return assign_optimizers(
        network,
        gamma=[1e-3 * f for f in falling],
        tau=[5e-5 * f for f in falling],
        lr_bias=[0.05 / math.sqrt(2) ** (2 * n) for n in range(below + 1)],
        lr_scale=1e-3,
    )
