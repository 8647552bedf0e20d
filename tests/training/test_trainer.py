"""Epochs: every sample once, nothing lost between two halves, troubles noticed."""

import pytest
import torch

from binep import data
from binep.core.metrics import Tally
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.trainer import Trainer, diagnose, random_streams
from conftest import small_recipe

CPU = torch.device("cpu")


def trainer(name: str = "digits-1fc-w", *overrides: str, seed: int = 0) -> Trainer:
    recipe = small_recipe(name, *overrides)
    return runs.build_trainer(recipe, recipe.hold_out(data.load("digits")), seed, CPU)


class Recorder:
    """An engine that learns nothing and remembers what it was given."""

    name, precision = "recorder", "none"

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def train(self, x: torch.Tensor, labels: torch.Tensor) -> None:
        self.seen.append(x)

    def evaluate(self, x: torch.Tensor, labels: torch.Tensor) -> Tally:
        return Tally(samples=len(labels), batches=1)

    def collect(self) -> Tally:
        return Tally(samples=1, batches=1, flips=[0, 0])

    def sync(self) -> None: ...


def test_an_epoch_shows_every_training_image_once_in_a_new_order():
    subject = trainer()
    orders = []
    for _ in range(2):
        subject.engine = recorder = Recorder()
        subject.epoch()
        assert [len(x) for x in recorder.seen] == [200] * 7 + [37]
        orders.append(torch.cat(recorder.seen).flatten(1))
    every = subject.dataset.train.images.flatten(1)
    for order in orders:
        assert torch.equal(order.sort(0).values, every.sort(0).values)
    assert not torch.equal(*orders)


def test_a_smaller_last_mini_batch_can_be_left_out():
    subject = trainer("digits-1fc-w", "training.drop_last=true")
    left_out = []
    for _ in range(2):
        subject.engine = recorder = Recorder()
        subject.epoch()
        assert [len(x) for x in recorder.seen] == [200] * subject.batches == [200] * 7
        seen = {tuple(image.tolist()) for image in torch.cat(recorder.seen).flatten(1)}
        every = {tuple(image.tolist()) for image in subject.dataset.train.images.flatten(1)}
        left_out.append(every - seen)
    assert left_out[0] != left_out[1], "the order is new each time"


class TakesFive(Recorder):
    at_once = 5

    def train_many(self, x: torch.Tensor, labels: torch.Tensor, size: int) -> None:
        self.seen.append(x)


def test_engines_that_take_many_mini_batches_leave_the_last_out_too():
    subject = trainer("digits-1fc-w", "training.drop_last=true")
    subject.engine = recorder = TakesFive()
    subject.epoch()
    assert [len(x) for x in recorder.seen] == [1000, 200, 200]


def test_engines_that_take_many_mini_batches_get_the_same_shifted_images():
    one, many = Recorder(), TakesFive()
    for recorder in (one, many):
        subject = trainer("digits-1fc-w", "data.crop=1", "data.flip=true")
        subject.engine = recorder
        subject.epoch()
    assert len(many.seen) < len(one.seen)
    assert torch.equal(torch.cat(many.seen), torch.cat(one.seen))


def test_there_must_be_one_whole_mini_batch():
    with pytest.raises(BinepError, match="allowed is at most 1437, the training images"):
        trainer("digits-1fc-w", "training.drop_last=true", "training.batch_size=1438")


@pytest.mark.parametrize("name", ["digits-1fc-w", "digits-conv-wa"])
def test_an_epoch_in_pieces_is_the_same_epoch(name: str):
    whole, pieces = trainer(name), trainer(name)
    expected = whole.epoch()
    results = []
    while not results or results[-1] is None:
        results.append(pieces.epoch(keep_going=lambda: False))
    assert results[:-1] == [None] * 8
    for line in (expected, results[-1]):
        del line["seconds"], line["test_seconds"]
    assert results[-1] == expected
    for a, b in zip(whole.network.parameters(), pieces.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_line_of_metrics_has_all_that_is_promised():
    line = trainer("digits-conv-wa").epoch()
    assert line is not None
    assert set(line["train_error"]) == set(line["test_error"]) == {"average", "single"}
    for key in ("pi", "flips", "alpha", "alpha_range"):
        assert len(line[key]) == 3
    for key in ("loss", "test_loss", "residual", "seconds", "free_steps", "nudged_steps"):
        assert line[key] >= 0
    assert (line["epoch"], line["free_steps"], line["nudged_steps"]) == (1, 6, 3)


def test_validation_images_are_neither_trained_nor_tested_on_twice():
    subject = trainer("digits-1fc-w", "data.validation=100")
    digits = data.load("digits")
    assert torch.equal(subject.dataset.test.images, digits.train.images[-100:])
    assert torch.equal(subject.dataset.train.images, digits.train.images[:-100])


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("digits-1fc-w", "reference"),
        ("digits-1fc-w", "delta"),
        ("digits-1fc-wa", "reference"),
        ("digits-1fc-wa", "packed"),
    ],
)
def test_a_seed_is_the_same_training_on_one_thread_and_on_two(name: str, engine: str, on_threads):
    if engine != "reference":
        pytest.importorskip("numba")
    keys = [
        "network.dense=[600]",  # as many weights as make torch share a sum among threads
        *("network.learn_scale=true", "optimizer.lr_scale=1e-3"),
        *("training.batch_size=200", "learning.free_steps=8", "learning.nudged_steps=3"),
    ]
    recipe = recipes.load(name, keys)
    ends = []
    for threads in (1, 2):
        on_threads(threads)
        subject = runs.build_trainer(recipe, data.load("digits"), 3, CPU, engine)
        line = subject.epoch()
        assert line is not None
        ends.append({k: v for k, v in line.items() if not k.endswith("seconds")})
        momenta = [state["momentum"] for state in subject.optimizers.bop.state.values()]
        ends.append([p.detach() for p in subject.network.parameters()] + momenta)
    assert ends[0] == ends[2]
    for one, two in zip(ends[1], ends[3], strict=True):
        assert torch.equal(one, two)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_what_a_cpu_draws():
    keys = ["data.crop=1", "data.flip=true", "optimizer.momentum_noise=2.0"]
    seen = []
    for device in (CPU, torch.device("cuda")):
        recipe = small_recipe("digits-1fc-w", *keys)
        digits = data.load("digits").to(device)
        subject = runs.build_trainer(recipe, digits, 0, device, "reference")
        engine, subject.engine = subject.engine, Recorder()
        subject.epoch()
        images = torch.cat(subject.engine.seen)
        engine.train(images[:10], digits.train.labels[:10])
        (momentum, *_) = (state["momentum"] for state in subject.optimizers.bop.state.values())
        signs = subject.network.couplings[0].signs.detach()
        seen.append([part.cpu() for part in (images, signs, momentum)])
    assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[0][1], seen[1][1])
    # The first gradient is in it, too, which real activations round as each device likes.
    torch.testing.assert_close(seen[0][2], seen[1][2])


def test_streams_are_independent_and_seeded():
    first, again, other = (random_streams(seed) for seed in (0, 0, 1))
    draws = {name: torch.rand(4, generator=stream) for name, stream in first.items()}
    assert len({tuple(draw.tolist()) for draw in draws.values()}) == len(draws) == 5
    for name in draws:
        assert torch.equal(draws[name], torch.rand(4, generator=again[name]))
        assert not torch.equal(draws[name], torch.rand(4, generator=other[name]))


def line(**changes):
    usual = {"loss": 0.1, "test_loss": 0.1, "residual": 0.0, "pi": [-3.0, -5.0], "undecided": 0.0}
    return {**usual, **changes}


def test_healthy_training_has_no_troubles():
    assert diagnose([line()]) == {}


@pytest.mark.parametrize(
    ("history", "kind", "advice"),
    [
        ([line(loss=float("nan"), largest=float("inf"))], "nan", "lr_bias"),
        ([line(residual=float("inf"))], "nan", "lr_bias"),
        ([line(pi=[0.3, -4.0]), line(pi=[0.2, -4.0])], "flipping 0", "optimizer.tau"),
        ([line(undecided=100.0)], "dead", "network.gain"),
        ([line(largest=2e6)], "diverging", "lr_bias"),
        ([line(residual=0.04)], "restless", "learning.free_steps"),
    ],
)
def test_troubles_are_named_with_what_to_try(history, kind: str, advice: str):
    found = diagnose(history)
    assert list(found) == [kind] and advice in found[kind]


def test_bits_may_be_at_rest_where_states_are_not():
    assert diagnose([line(residual=0.04)], binary=True) == {}


def test_one_busy_epoch_is_not_trouble():
    assert diagnose([line(pi=[0.3, -4.0])]) == {}
    assert diagnose([line(pi=[0.3, -4.0]), line(pi=[-0.1, -4.0])]) == {}


def test_a_dead_output_is_undecided():
    subject = trainer("digits-1fc-w")
    subject.network.couplings[-1].bias.data.fill_(-100)
    subject.optimizers.sgd.param_groups[1]["lr"] = 0.0
    subject.set_rates = None
    assert "dead" in diagnose([subject.epoch()])
