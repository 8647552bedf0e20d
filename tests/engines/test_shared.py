"""Engines as one of several: parts of mini-batches, added up, are learnt from like the whole.

The processes are threads here, one of which runs at a time; `tests/training/test_processes.py` has
real ones.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CUDA, Built, Case, build
from torch import Tensor

from binep import BinepError, Homeostasis
from binep.engines.processes import ALONE, Processes, share


class Turns:
    """Who runs, while several wait for one another."""

    def __init__(self, count: int) -> None:
        self.count, self.lock = count, threading.Lock()
        self.barrier = threading.Barrier(count, timeout=60)
        self.told: dict[int, Any] = {}

    def everyone(self, rank: int, own: Any) -> list[Any]:
        """What all say, in order."""
        self.told[rank] = own
        self._wait()
        found = [self.told[n] for n in range(self.count)]
        self._wait()
        return found

    def _wait(self) -> None:
        self.lock.release()
        self.barrier.wait()
        self.lock.acquire()


class InTurns:
    """An `Exchange` among threads."""

    def __init__(self, turns: Turns, rank: int) -> None:
        self.turns, self.rank = turns, rank

    def add_up(self, exact: Sequence[Tensor], rounded: Sequence[Tensor]) -> None:
        own = [tensor.clone() for tensor in (*exact, *rounded)]
        for tensor in own[: len(exact)]:
            assert torch.equal(tensor, tensor.round())
        told = self.turns.everyone(self.rank, own)
        for n, tensor in enumerate((*exact, *rounded)):
            tensor.copy_(torch.stack([each[n] for each in told]).sum(0))

    def largest(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        told = self.turns.everyone(self.rank, torch.tensor(rows, dtype=torch.float64))
        return torch.stack(told).amax(0).tolist()

    def total(self, row: Sequence[float]) -> list[float]:
        told = self.turns.everyone(self.rank, torch.tensor(row, dtype=torch.float64))
        return torch.stack(told).sum(0).tolist()


def in_turns(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    turns = Turns(count)

    def run(rank: int) -> Any:
        with turns.lock:
            try:
                return work(Processes(rank, count, InTurns(turns, rank)))  # type: ignore[arg-type]
            except BaseException:
                turns.barrier.abort()
                raise

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def trained(case: Case, engine: str, processes: Processes = ALONE) -> tuple[Built, Any, Any]:
    place = CUDA if engine == "cuda" else torch.device("cpu")
    built = build(case, engine, device=place)
    share(built.engine, built.network, built.learning, processes)
    batches = list(case.batches(place))
    for x, labels in batches:
        built.engine.train(x, labels)
    counted = built.engine.collect()
    return built, counted, built.engine.evaluate(*batches[-1])


def assert_same_bits(built: Built, expected: Built) -> None:
    for one, two in zip(built.network.parameters(), expected.network.parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(built.momenta(), expected.momenta(), strict=True):
        assert torch.equal(one["momentum"], two["momentum"])
        assert (one["decay"], one["flips"]) == (two["decay"], two["flips"])


CONV = ({"above": 3, "kernel": 3, "padding": 1, "pool": 2},)
LEARNING = {"sign": "random", "free_steps": 4, "nudged_steps": 3}
DENSE = Case(0, (20,), dense=(9,), per_class=2, learn_scale=True, noise=1.0, learning=LEARNING)
FOLLOWS = {**LEARNING, "homeostasis": Homeostasis(0.1, 0.3)}
BITS = [
    DENSE,
    replace(DENSE, seed=8, learning=FOLLOWS),
    Case(9, (1, 5, 5), convs=CONV, dense=(7,), per_class=3, learning=FOLLOWS),
    Case(1, (1, 5, 5), convs=CONV, dense=(7,), per_class=3, learn_scale=True, learning=LEARNING),
    Case(2, (12,), dense=(70, 5), kind="bits", learning={**LEARNING, "sign": "centered"}),
]
REAL = [
    Case(10, (20,), bits=False, dense=(9,), learning=FOLLOWS),
    Case(3, (20,), bits=False, dense=(9,), learn_scale=True, learning=LEARNING),
    Case(4, (1, 5, 5), bits=False, convs=CONV, dense=(7,), kind="real", learning=LEARNING),
    Case(5, (20,), bits=False, binary=False, dense=(9,), learning=LEARNING),
    Case(6, (20,), dense=(9,), kind="real", learning=LEARNING),
]
RUNS = {
    "reference": lambda case: True,
    "packed": lambda case: case.bits,
    "delta": lambda case: not case.bits and case.binary and "homeostasis" not in case.learning,
    "cuda": lambda case: case.seed in (0, 1, 3),  # Triton's interpreter takes its time
}


def each(cases: list[Case]) -> list[Any]:
    return [
        pytest.param(case, engine, id=f"{engine}-{case}")
        for engine, runs in RUNS.items()
        for case in cases
        if runs(case)
    ]


@pytest.fixture(autouse=True)
def _compilers(request: pytest.FixtureRequest) -> None:
    engine = getattr(request.node, "callspec", None) and request.node.callspec.params.get("engine")
    package = {"cuda": "triton", "packed": "numba", "delta": "numba"}.get(engine or "")
    if package:
        pytest.importorskip(package)


# Mini-batches of 3, 3 and 2 samples: with three processes one of them is idle in the last.
@pytest.mark.parametrize("case, engine", each(BITS))
def test_bits_are_those_of_one_process_however_many_there_are(case, engine):
    expected, counted, evaluated = trained(case, engine)
    found = in_turns(3, lambda processes: trained(case, engine, processes))
    for built, seen, read in found:
        assert_same_bits(built, expected)
        assert (seen, read) == (counted, evaluated)


@pytest.mark.parametrize("case, engine", each(REAL))
def test_real_numbers_agree_to_rounding(case, engine):
    expected = trained(case, engine)[0].network
    before = build(case, "reference").network.parameters()
    first, second = (b.network for b, *_ in in_turns(2, lambda p: trained(case, engine, p)))
    for one, two, wanted, start in zip(
        first.parameters(), second.parameters(), expected.parameters(), before, strict=True
    ):
        assert torch.equal(one, two)
        moved = (wanted.cpu() - start).detach().abs().max()
        # Three steps in float32; GPU engines send float16, the same from whichever process.
        assert (one - wanted).detach().abs().max().cpu() <= 1e-3 * moved + 1e-7


def test_bptt_takes_the_mean_over_parts_of_different_sizes():
    learning = {"free_steps": 4, "steps": 2}
    case = Case(7, (20,), bits=False, dense=(9,), learning=learning)
    expected = trained(case, "reference")[0].network
    found = in_turns(2, lambda processes: trained(case, "reference", processes)[0].network)
    for one, wanted in zip(found[0].parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "case, engine, reason",
    [
        (Case(0, (4,), learning={"tolerance": 0.1}), "reference", "learning.tolerance=0.1 in 2"),
        (
            Case(0, (4,), bits=False, learning={"free_steps": 4, "steps": 2}),
            "cuda",
            "engine 'cuda' trains by BPTT in one process, not 2",
        ),
    ],
)
def test_what_would_differ_between_processes_is_refused(case, engine, reason):
    built = build(case, engine, device=CUDA if engine == "cuda" else "cpu")
    with pytest.raises(BinepError, match=reason):
        share(built.engine, built.network, built.learning, Processes(1, 2))
