"""What `binep bench` measures: the same mini-batches, whole steps, honest counts."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from binep import BinepError, ConvPool, Dense, Network
from binep.core.metrics import Tally
from binep.engines.activity import Activity
from binep.studies import bench
from binep.training import recipe as recipes
from conftest import SMALL


class FakeEngine:
    """Takes a known time for a mini-batch and remembers which ones it got."""

    name, precision = "fake", "none"

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.seen = seconds, list[float]()
        self.activity = Activity()

    def train(self, x: Tensor, labels: Tensor) -> None:
        time.sleep(self.seconds[min(len(self.seen), len(self.seconds) - 1)])
        self.seen.append(float(x))
        self.activity += Activity(samples=1, steps=3)

    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        return Tally()

    def collect(self) -> Tally:
        return Tally(batches=1, samples=1)

    def sync(self) -> None:
        pass


def numbered(count: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.tensor(float(n)), torch.tensor(0)) for n in range(count)]


def small(tmp_path: Path, name: str = "digits-1fc-w") -> str:
    path = tmp_path / f"small-{name}.toml"
    path.write_text(recipes.dumps(recipes.load(name, [*SMALL[name], "training.batch_size=20"])))
    return str(path)


@pytest.fixture(autouse=True)
def quick_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_peak", lambda device: {"numbers": 1e9, "bits": 64e9})


def test_the_first_mini_batch_is_not_counted():
    engine = FakeEngine([0.1, 0.001])
    timing = bench.time_batches(engine, numbered(3), 4)
    assert engine.seen == [0, 1, 2, 0, 1]
    assert timing.count == 4 and timing.tally.batches == 4
    assert timing.milliseconds < 50
    assert timing.activity == Activity(samples=4, steps=12)


def test_timing_ends_with_its_budget():
    assert bench.time_batches(FakeEngine([0.01]), numbered(2), 100, budget=0.05).count < 10
    slow = FakeEngine([0.05])
    timing = bench.time_batches(slow, numbered(2), 100, budget=0.02)
    assert (timing.count, slow.seen, timing.tally.batches) == (1, [0.0], 1)
    assert timing.milliseconds >= 50


def test_products_are_those_of_every_step():
    """784-30-10: up once, 2 x 300 a step, gradients of one and of two phases."""
    dense = Network((784,), [Dense(784, 30), Dense(30, 10)])
    expected = 2 * 784 * 30 + (5 + 2) * 600 + 600
    assert bench.products_a_sample(dense, 5, 2) == expected
    assert bench.products_a_sample(dense, 5, 2, planes=8) == expected + 7 * 2 * 784 * 30
    chain = [ConvPool(1, 4, kernel=5, padding=2, pool=2), ConvPool(4, 6, kernel=3, pool=2)]
    conv = Network((1, 28, 28), [*chain, Dense(6 * 36, 10)])
    first, inside = 4 * 25 * 28 * 28, 6 * 4 * 9 * 12 * 12 + 2160
    assert bench.products_a_sample(conv, 1, 1) == 2 * first + 3 * 2 * inside


def test_both_engines_train_the_same_mini_batches_from_the_same_state(tmp_path, monkeypatch):
    seen: list[tuple[Any, ...]] = []
    original = bench.time_batches

    def spy(engine: Any, batches: Any, *rest: Any) -> bench.Timing:
        state = [p.detach().clone() for p in engine.network.parameters()]
        momenta = [s["momentum"].clone() for s in engine.optimizers.bop.state.values()]
        signs = engine.learning.generator.get_state()
        seen.append((state + momenta + [signs], batches))
        return original(engine, batches, *rest)

    monkeypatch.setattr(bench, "time_batches", spy)
    bench.bench([small(tmp_path)], device="cpu", batches=2, train=5)
    (state, batches), (other_state, other_batches) = seen
    assert batches is other_batches and len(batches) == 3
    assert len(state) == len(other_state)
    assert all(torch.equal(a, b) for a, b in zip(state, other_state, strict=True))
    assert not torch.equal(
        state[0], recipes.load(small(tmp_path)).build_network().couplings[0].signs
    )


def test_a_row_holds_what_was_measured(tmp_path):
    name = small(tmp_path, "digits-conv-wa")
    result = bench.bench([name], device="cpu", batches=3, reference_batches=2, train=2)
    (row,) = result.rows
    assert (row.engine_n, row.reference_n, row.batch, row.trained) == (3, 2, 20, 2)
    assert (row.free_steps, row.nudged_steps, row.images) == (6, 3, "digits")
    network = recipes.load(name).build_network()
    floor = 1e3 * 20 * bench.products_a_sample(network, 6, 3, planes=8) / 64e9
    assert row.floor_ms == pytest.approx(floor)
    assert row.ratio == row.reference_ms / row.engine_ms
    assert row.epoch_s == pytest.approx(row.engine_ms * 72 / 1e3)
    if row.engine == "packed":
        assert row.steps and row.events and row.coincidences
        assert 0 < row.steps <= 9
        assert row.ns_per_event == pytest.approx(
            1e6 * row.engine_ms / 20 / (row.events + row.coincidences)
        )
    loaded = json.loads(result.to_json())
    assert loaded["rows"][0]["ratio"] == row.ratio
    header, (cells,) = result.table
    assert len(header) == len(cells) and cells[0] == row.recipe


def test_without_data_images_are_made_up_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("BINEP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "tiny.toml"
    sizes = ["network.dense=[8]", "learning.free_steps=2", "learning.nudged_steps=1"]
    path.write_text(recipes.dumps(recipes.load("mnist-1fc-w", sizes)))
    said: list[str] = []
    result = bench.bench([str(path)], device="cpu", batches=1, reference_batches=1, say=said.append)
    assert result.rows[0].images == "made-up images"
    assert "made-up images" in result.notes and "made-up images" in said[0]
    said.clear()
    names = [str(path), small(tmp_path)]
    elsewhere = tmp_path / "elsewhere"
    counts = {"batches": 1, "reference_batches": 1}
    result = bench.bench(names, device="cpu", data_dir=elsewhere, say=said.append, **counts)
    assert [row.images for row in result.rows] == ["made-up images", "digits"]
    assert "mnist is incomplete" in said[0] and str(elsewhere) in said[0]
    assert "made-up images" in said[0]


def test_a_recipe_that_cannot_be_timed_does_not_take_the_others_rows_along(tmp_path):
    big = tmp_path / "big.toml"
    big.write_text(
        'extends = "digits-1fc-w"\nnetwork.dense = [16777216, 16777216]\n'
        "optimizer.gamma = 1e-4\noptimizer.tau = 1e-6\noptimizer.lr_bias = 0.1\n"
    )
    said: list[str] = []
    names, counts = [small(tmp_path), str(big)], {"batches": 1, "reference_batches": 1}
    result = bench.bench(names, device="cpu", say=said.append, **counts)
    assert len(result.rows) == 1
    assert "big: skipped" in said[-1] and "GB of memory" in said[-1]


def test_exponents_are_slopes_in_logarithms():
    curve = bench.Curve("a", "b", "width", [2, 4, 8], [3.0, 12.0, 48.0])
    assert curve.exponent == pytest.approx(2)


def test_a_sweep_changes_one_size_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "SWEEP_BASE", {"width": 8, "depth": 1, "batch": 4, "T": 2})
    sizes = {"width": (8, 16), "depth": (1, 2), "batch": (4, 8), "T": (2, 4)}
    built: list[Any] = []
    original = bench._resized

    def spy(name: str, values: dict[str, int]) -> Any:
        built.append(values)
        return original(name, values)

    monkeypatch.setattr(bench, "_resized", spy)
    found = bench.sweep(["digits-1fc-w"], device="cpu", batches=2, sizes=sizes)
    assert [curve.size for curve in found.curves] == list(sizes)
    assert built[3] == {"width": 8, "depth": 2, "batch": 4, "T": 2}
    recipe = original("digits-1fc-w", built[3])
    assert recipe.network.dense == [8, 8] and recipe.learning.free_steps == 2
    for name in ("a.md", "a.json", "a.png"):
        bench.write(found, tmp_path / name)
    assert "digits-1fc-w" in (tmp_path / "a.md").read_text()
    assert len(json.loads((tmp_path / "a.json").read_text())["curves"]) == 4
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BinepError, match="convolutional"):
        bench.sweep(["digits-conv-w"], device="cpu")


def test_impossible_requests_are_refused_before_measuring(tmp_path):
    with pytest.raises(BinepError, match="--sweep"):
        bench.check_out([tmp_path / "a.png"], sweeping=False)
    with pytest.raises(BinepError, match="batches=0"):
        bench.bench(batches=0)
    with pytest.raises(BinepError, match="train=-1"):
        bench.sweep(train=-1)
    big = tmp_path / "big.toml"
    big.write_text('extends = "digits-1fc-w"\ntraining.batch_size = 2000\n')
    with pytest.raises(BinepError, match="batch_size=2000: allowed is at most 1437"):
        bench.bench([str(big)], device="cpu", batches=1)
    said: list[str] = []
    with pytest.raises(BinepError, match="warp"):
        bench.bench(["digits-1fc-w"], engine="warp", device="cpu", say=said.append)
    assert not said


def test_every_panel_of_a_sweep_has_numbers_at_its_axes():
    """Also one whose times hardly differ, below or above a decade's middle."""
    for times in ([2.6, 2.7], [5.8, 6.4], [0.031, 0.033]):
        curve = bench.Curve("mnist-1fc-wa", "packed", "T", [10, 160], times)
        figure = bench.sweep_figure(bench.Sweep({}, "mnist", 0, [curve]))
        figure.canvas.draw()
        (axes,) = figure.axes
        low, high = axes.get_ylim()
        marks = [y for y in axes.get_yticks() if low <= y <= high]
        assert len(marks) >= 2 and marks[0] <= min(times)
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "160"]
        assert all(tick.get_text() for tick in axes.get_yticklabels())
