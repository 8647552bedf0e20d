"""Tuning by pi: gamma and tau of every coupling, from how many weights flip.

The paper's rule: pi, the logarithm of the share of weights that flip in an epoch, should start
between -5 and 0 and fall below -5 as training goes on. What decides it is `tau / gamma`: as long as
little is forgotten, `m` is about `gamma` times the sum of all gradients, and a weight flips once
that sum exceeds `tau / gamma`. So tau is moved until pi is where it is wanted, each coupling on its
own: by factors of up to 10 at first, then ever smaller ones, since pi falls by about 1 where tau
grows e-fold. That is done for several places in the band. Their combinations, in which no coupling
is busier than the ones above it, are compared on validation images, which are kept out of training,
and among those about equally good the one with fewest flips is taken. At last gamma is moved with
`tau / gamma` kept, which leaves only how long `m` remembers: `1 / gamma` mini-batches. The test set
is not used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from binep.core import metrics
from binep.core.metrics import Tally
from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report import figures
from binep.report.figures import MINUS
from binep.studies.compare import held_out
from binep.studies.workbench import Workbench
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.recipe import Recipe
from binep.training.sections import PaperKeys
from binep.training.trainer import Trainer

BAND = (-5.0, 0.0)  # where pi has to be at first
AIMS = (-2.5, -1.5, -0.5, -3.5, -4.5)  # places in it
CLOSE = 0.5  # to an aim, in units of pi
LARGEST = 10.0  # factor that tau is moved by at once
PROBES = 8  # at most, for each aim
MEMORIES = (1.0, 10.0, 100.0, 0.1)  # times as long as at the start


@dataclass(frozen=True)
class Trial:
    """Something that was tried.

    Attributes:
        what: a probe of a few hundred mini-batches, or a training of some epochs.
        pi: of each coupling, on the scale of an epoch.
        train_error, validation_error: in per cent; of a probe the latter is not measured, nan.
    """

    what: str
    gamma: list[float]
    tau: list[float]
    pi: list[float]
    train_error: float
    validation_error: float = math.nan


@dataclass(frozen=True)
class Tuned:
    """The recipe found, and everything that was tried on the way.

    Attributes:
        start: whether nothing is better than the rates of the recipe that it began with.
    """

    recipe: Recipe
    trials: list[Trial]
    start: bool = False


def tune(
    bench: Workbench,
    *,
    batches: int = 300,
    epochs: int = 3,
    watch: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """Find gamma and tau of every coupling, starting from a recipe's, however wrong they are.

    Args:
        batches: mini-batches of a probe, at most an epoch.
        epochs: how long candidates are trained to be compared.
        watch: is told of each trial when it is over.
    """
    if epochs < 1:
        raise BinepError(f"epochs={epochs}: allowed is at least 1")
    tuner, start = Tuner(bench, batches, watch), Rates.of(bench.recipe)
    candidates = combinations(tuner.search_all())
    best = tuner.best_memory(tuner.compare([start, *candidates], epochs), epochs)
    # What looked good for fewer epochs, or was good but for chance, must not be worse in the end.
    best = tuner.better(start, best, epochs)
    return Tuned(written(bench.recipe, best), tuner.trials, start=best == start)


def rates_by_pi(
    bench: Workbench, *, batches: int = 300, watch: Callable[[Trial], None] = lambda trial: None
) -> "Rates":
    """Rates with which pi of each coupling is in its band; the recipe's own if none are found."""
    start = Rates.of(bench.recipe)
    return Tuner(bench, batches, watch).search(AIMS[0], start) or start


@dataclass(frozen=True)
class Rates:
    """gamma and tau, one of each a coupling."""

    gamma: list[float]
    tau: list[float]

    @classmethod
    def of(cls, recipe: Recipe) -> "Rates":
        gamma, tau = recipe.optimizer.gamma, recipe.optimizer.tau
        if not isinstance(gamma, list) or not isinstance(tau, list):
            raise BinepError(f"recipe {recipe.name}: it needs optimizer.gamma and optimizer.tau")
        # A tau of 0 cannot be moved by a factor: take that of a single sample's gradient.
        single = [g / recipe.training.batch_size for g in gamma]
        return cls(gamma, [t or least for t, least in zip(tau, single, strict=True)])

    def moved(self, factors: Mapping[int, float]) -> "Rates":
        """The tau of some couplings times a factor."""
        moved = [_short(tau * factors.get(n, 1.0)) for n, tau in enumerate(self.tau)]
        return Rates(self.gamma, moved)

    def remembering(self, factor: float) -> "Rates":
        """Rates whose memory is `factor` times as long, with the same `tau / gamma`."""
        return Rates(
            [_short(g / factor) for g in self.gamma], [_short(t / factor) for t in self.tau]
        )

    def put_into(self, recipe: Recipe) -> Recipe:
        return replace(recipe, optimizer=replace(recipe.optimizer, gamma=self.gamma, tau=self.tau))


def _short(value: float) -> float:
    """A rate with two digits: more would pretend to mean something."""
    return float(f"{value:.1e}")


class Tuner:
    """Tries rates, all on the same mini-batches from the same start.

    Args:
        batches: mini-batches of a probe, at most an epoch.
        watch: is told of each trial when it is over.
    """

    def __init__(
        self,
        bench: Workbench,
        batches: int = 300,
        watch: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        with torch.device("meta"):
            couplings = bench.recipe.build_network().couplings
        if not all(coupling.binary for coupling in couplings):
            name = bench.recipe.name
            raise BinepError(f"recipe {name} has real weights: only binary ones have a pi")
        if batches < 2:
            raise BinepError(f"batches={batches}: allowed are at least 2")
        self.bench, self.batches, self.watch = bench, batches, watch
        self.trials: list[Trial] = []

    def search_all(self) -> dict[float, Rates]:
        """Rates for each aim that can be reached, each search beginning where another ended."""
        found = {AIMS[0]: self.search(AIMS[0], Rates.of(self.bench.recipe))}
        for aim in AIMS[1:]:
            near = min(found, key=lambda known: abs(known - aim))
            start = found[near]
            if start is not None:
                factor = math.exp(near - aim)
                start = start.moved(dict.fromkeys(range(len(start.tau)), factor))
                found[aim] = self.search(aim, start)
        reached = {aim: rates for aim, rates in found.items() if rates is not None}
        if not reached:
            raise BinepError(
                f"recipe {self.bench.recipe.name}: no tau takes pi of every coupling into "
                f"{BAND[0]:g} to {BAND[1]:g} within {PROBES} probes"
            )
        return reached

    def search(self, aim: float, start: Rates) -> Rates | None:
        """Move each tau until its coupling's pi is close to `aim`: the nearest, if in the band."""
        rates, seen = start, list[tuple[float, Rates, list[float]]]()
        brackets = [_Bracket() for _ in start.tau]
        for _ in range(PROBES):
            pi = self.probe(rates, aim)
            seen.append((max(abs(p - aim) for p in pi), rates, pi))
            factors = {
                n: bracket.factor(rates.tau[n], pi[n], aim) for n, bracket in enumerate(brackets)
            }
            if all(factor == 1 for factor in factors.values()):
                break
            rates = rates.moved(factors)
        _, nearest, pi = min(seen, key=lambda each: each[0])
        return nearest if all(BAND[0] <= p <= BAND[1] for p in pi) else None

    def probe(self, rates: Rates, aim: float) -> list[float]:
        """pi of each coupling, from a few hundred mini-batches.

        The flips of each half are extrapolated to an epoch, in proportion to its mini-batches, and
        the busier half counts. With a large tau that is the second: the first fills the momenta,
        which start at 0. With a far too small one it is the first: so many weights flip at once
        that the network goes dead, and then there is nothing left to flip for.
        """
        trainer = self._trainer(rates)
        batches = min(self.batches, trainer.batches)
        parts: list[Tally] = []

        def keep_going() -> bool:
            # An engine may take several mini-batches at once.
            done = math.ceil(trainer.progress.position / trainer.batch_size)
            if done >= batches / 2 * (len(parts) + 1) or done >= batches:
                trainer.collect()
                parts.append(trainer.progress.tally)
                trainer.progress.tally = Tally()
            return done < batches

        with runs.fitting_threads(trainer):
            trainer.epoch(keep_going)
        pis = [_pi(trainer, part.flips, trainer.batches / part.batches) for part in parts]
        pi = [max(each) for each in zip(*pis, strict=True)]
        error = parts[-1].error("average")
        self._tell(Trial(f"probe, pi near {_signed(aim)}", rates.gamma, rates.tau, pi, error))
        return pi

    def compare(self, candidates: Sequence[Rates], epochs: int) -> Rates:
        """Train all, after each epoch only the better half; returns the best of the last."""
        distinct = {str(rates): rates for rates in candidates}.values()
        running = [(rates, self._trainer(rates)) for rates in distinct]
        for epoch in range(1, epochs):
            errors = [self._train_epoch(*each, epoch).validation_error for each in running]
            order = sorted(range(len(running)), key=errors.__getitem__)
            running = [running[n] for n in order[: math.ceil(len(running) / 2)]]
        last = [self._train_epoch(*each, epochs) for each in running]
        return self._calmest(last)

    def best_memory(self, rates: Rates, epochs: int) -> Rates:
        """The good rates with the longest memory: a short one forgets and is noisy."""
        tried = [rates.remembering(factor) for factor in MEMORIES]
        trials = [self._train(each, epochs) for each in tried if max(each.gamma) <= 1]
        longest = min(self._good(trials), key=lambda trial: sum(trial.gamma))
        return Rates(longest.gamma, longest.tau)

    def better(self, start: Rates, found: Rates, epochs: int) -> Rates:
        """What was found, unless the initial rates have a lower error."""
        errors = [self._train(each, epochs).validation_error for each in (start, found)]
        return start if errors[0] < errors[1] else found

    def _calmest(self, trials: Sequence[Trial]) -> Rates:
        """The rates with fewest flips among those that are good."""
        calmest = min(self._good(trials), key=lambda trial: sum(trial.pi))
        return Rates(calmest.gamma, calmest.tau)

    def _good(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those whose validation error differs from the best only by chance.

        Chance: half the standard deviation of an error that is counted on so few images, since all
        are counted on the same.
        """
        lowest = min(trial.validation_error for trial in trials)
        chance = math.sqrt(lowest * (100 - lowest) / len(self.bench.dataset.test)) / 2
        return [trial for trial in trials if trial.validation_error <= lowest + chance]

    def _train(self, rates: Rates, epochs: int) -> Trial:
        """A training of some epochs; what was trained already is not trained again."""
        for trial in self.trials:
            if trial.what == _training(epochs) and Rates(trial.gamma, trial.tau) == rates:
                return trial
        trainer = self._trainer(rates)
        with runs.fitting_threads(trainer):
            for _ in range(1, epochs):
                trainer.epoch()
        return self._train_epoch(rates, trainer, epochs)

    def _train_epoch(self, rates: Rates, trainer: Trainer, epoch: int) -> Trial:
        with runs.fitting_threads(trainer):
            line = trainer.epoch()
        assert line is not None
        errors = line["train_error"]["average"], line["test_error"]["average"]
        return self._tell(Trial(_training(epoch), rates.gamma, rates.tau, line["pi"], *errors))

    def _trainer(self, rates: Rates) -> Trainer:
        return self.bench.trainer(rates.put_into(self.bench.recipe))

    def _tell(self, trial: Trial) -> Trial:
        self.trials.append(trial)
        self.watch(trial)
        return trial


def combinations(found: Mapping[float, Rates]) -> list[Rates]:
    """Rates for all aims of the first and of the last coupling, of which the last is as busy.

    The couplings between have aims between, and taus between those found, in logarithms.
    """
    aims = sorted(found)
    gamma = found[aims[0]].gamma
    last = len(gamma) - 1

    def tau(n: int, aim: float) -> float:
        points = [math.log(found[each].tau[n]) for each in aims]
        return _short(math.exp(float(np.interp(aim, aims, points))))

    return [
        Rates(gamma, [tau(n, low + (high - low) * n / max(last, 1)) for n in range(last + 1)])
        for low in aims
        for high in aims
        if low <= high
    ]


def _training(epochs: int) -> str:
    return f"trained for {epochs} epoch{'s' if epochs > 1 else ''}"


def _pi(trainer: Trainer, flips: Sequence[int], share: float) -> list[float]:
    """pi of an epoch in which there are `share` times as many flips."""
    sizes = [coupling.signs.numel() for coupling in trainer.network.couplings]
    return [
        metrics.pi(round(count * share), size) for count, size in zip(flips, sizes, strict=True)
    ]


@dataclass
class _Bracket:
    """Between which taus pi of a coupling is as wanted: above `low`, below `high`."""

    low: float = 0.0
    high: float = math.inf

    def factor(self, tau: float, pi: float, aim: float) -> float:
        """The next factor on tau: 1 if pi is close to its aim.

        >>> bracket = _Bracket()
        >>> bracket.factor(1e-7, pi=-9.0, aim=-2.5), round(bracket.factor(1e-8, -1.9, -2.5), 2)
        (0.1, 3.16)
        >>> round(bracket.factor(2.5e-8, -3.5, -2.5), 2)  # halfway back, in logarithms
        0.63
        """
        if abs(pi - aim) <= CLOSE:
            return 1.0
        # The other couplings move too, so an old bound may turn out to be none.
        if pi > aim:
            self.low, self.high = tau, self.high if self.high > tau else math.inf
        else:
            self.low, self.high = self.low if self.low < tau else 0.0, tau
        if self.low > 0 and self.high < math.inf:
            return math.sqrt(self.low * self.high) / tau
        return min(max(math.exp(pi - aim), 1 / LARGEST), LARGEST)


# --- what came of it ----------------------------------------------------------------------------


def written(recipe: Recipe, rates: Rates) -> Recipe:
    """The recipe with its new rates, and a name of its own."""
    return replace(
        rates.put_into(recipe),
        name=f"{recipe.name}-tuned",
        summary=f"{recipe.name} with gamma and tau found by binep tune",
        paper=PaperKeys(),
    )


def line(trial: Trial) -> str:
    """A trial in one line, for who waits."""
    what, gamma, tau, pi, train, validation = _row(trial)
    return f"{what}: gamma {gamma}, tau {tau}: pi {pi}, train {train}, validation {validation}"


def render(tuned: Tuned) -> str:
    """Everything that was tried, as a table, and what was found."""
    header = ["tried", "gamma", "tau", "pi", "train", "validation"]
    keys, count = tuned.recipe.optimizer, held_out(tuned.recipe).data.validation
    return "\n".join(
        [
            figures.text_table(header, map(_row, tuned.trials), left=4),
            "",
            "pi of a probe: flips of its busier half, extrapolated to an epoch. Errors in %; "
            f"validation: the last {count} training images.",
            f"found: gamma = {keys.gamma}, tau = {keys.tau}"
            + (", those it began with: nothing better was found" if tuned.start else ""),
        ]
    )


def _row(trial: Trial) -> list[str]:
    return [
        trial.what,
        _list(trial.gamma),
        _list(trial.tau),
        " ".join(_signed(pi) for pi in trial.pi),
        figures.number(trial.train_error),
        figures.number(None if math.isnan(trial.validation_error) else trial.validation_error),
    ]


def _list(values: Sequence[float]) -> str:
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:.2g}" for value in shown)


def _signed(pi: float) -> str:
    return f"{pi:.1f}".replace("-", MINUS)


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe that was found as a TOML file that every command takes."""
    make_folder(path.parent)
    write_whole(path, recipes.dumps(recipe))
