"""Recipes: what ships is what spec says, and every mistake is one line that names its key."""

import json
import os
import random
import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from binep.core.couplings import ConvPool
from binep.core.neurons import Heaviside
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training.sections import RateSchedule
from binep.training.trainer import random_streams

PAPER = [
    "mnist-1fc-w",
    "mnist-1fc-w-a",
    "mnist-1fc512-w-a",
    "mnist-2fc-w",
    "mnist-2fc-w-a",
    "mnist-conv-w",
    "mnist-conv-w-a",
    "cifar10-conv-w",
    "cifar10-conv-w-a",
    "mnist-1fc-wa",
    "mnist-1fc-wa-a",
    "mnist-2fc-wa",
    "mnist-conv-wa",
]
REFERENCES = [
    "mnist-1fc-w-bptt",
    "mnist-2fc-w-bptt",
    "mnist-conv-w-bptt",
    "cifar10-conv-w-bptt",
    "mnist-1fc512-fp",
    "mnist-2fc512-fp",
    "mnist-conv-fp",
    "cifar10-conv-fp",
]
BEYOND = {
    "mnist-1fc-w-a-centered": "mnist-1fc-w-a",
    "mnist-2fc-wa-centered": "mnist-2fc-wa",
    "mnist-conv-w-a-centered": "mnist-conv-w-a",
    "mnist-1fc-w-a-schedule": "mnist-1fc-w-a",
    "mnist-1fc-w-a-shifted": "mnist-1fc-w-a",
    "mnist-2fc-w-a-shifted": "mnist-2fc-w-a",
    "mnist-conv-w-a-shifted": "mnist-conv-w-a",
    "mnist-1fc-wa-schedule": "mnist-1fc-wa",
    "mnist-1fc-wa-shifted": "mnist-1fc-wa",
    "mnist-1fc-wa-awake": "mnist-1fc-wa",
    "mnist-2fc-wa-awake": "mnist-2fc-wa",
    "mnist-2fc-wa-awake-plain": "mnist-2fc-wa",
    "mnist-conv-wa-margin": "mnist-conv-wa",
    "mnist-conv-wa-shifted": "mnist-conv-wa",
    "cifar10-conv-w-a-schedule": "cifar10-conv-w-a",
    "cifar10-conv-w-a-centered": "cifar10-conv-w-a",
}
BITS = {
    "mnist-1fc-wa-bits": "mnist-1fc-wa",
    "mnist-2fc-wa-bits": "mnist-2fc-wa",
    "digits-1fc-wa-bits": "digits-1fc-wa",
    "digits-conv-wa-bits": "digits-conv-wa",
}
# What else some of them change in the network.
ALSO = {
    "mnist-2fc-wa-awake": {"per_class": 200},
    "mnist-2fc-wa-awake-plain": {"per_class": 200},
    "mnist-conv-wa-margin": {"initial_state": 0.0},
    "mnist-conv-wa-shifted": {"initial_state": 0.0},
}
ALTERNATING = [
    f"{base}-alternating"
    for base in (
        *("mnist-2fc-w-a", "mnist-conv-w-a", "cifar10-conv-w", "cifar10-conv-w-a"),
        "cifar10-conv-w-a-centered",
    )
]
# Those of MNIST on other images, until they are asked on images of their own.
FASHION = {
    "fashion-1fc-w-a": "mnist-1fc-w-a-shifted",
    "fashion-2fc-w-a": "mnist-2fc-w-a-shifted",
    "fashion-conv-w-a": "mnist-conv-w-a-shifted",
    "fashion-1fc-wa": "mnist-1fc-wa-awake",
    "fashion-2fc-wa": "mnist-2fc-wa-awake",
    "fashion-conv-wa": "mnist-conv-wa-shifted",
}
DIGITS = ["digits-1fc-w", "digits-1fc-wa", "digits-conv-w", "digits-conv-wa"]


def test_every_row_of_the_paper_has_its_recipe():
    beyond = {*BEYOND, *ALTERNATING, *FASHION}
    assert set(recipes.names()) == {*PAPER, *REFERENCES, *beyond, *BITS, *DIGITS}


@pytest.mark.parametrize("name", ALTERNATING)
def test_layers_in_turn_take_half_the_steps(name: str):
    recipe, base = recipes.load(name), recipes.load(name.removesuffix("-alternating"))
    steps = (base.learning.free_steps // 2, base.learning.nudged_steps // 2)
    learning = replace(base.learning, free_steps=steps[0], nudged_steps=steps[1])
    assert recipe.network == replace(base.network, updates="alternating")
    assert recipe.learning == learning and recipe.optimizer == base.optimizer
    assert recipe.schedule == base.schedule and recipe.paper.test is None


@pytest.mark.parametrize(("name", "base"), BEYOND.items())
def test_recipes_beyond_the_paper_change_what_their_names_say(name: str, base: str):
    recipe, paper = recipes.load(name), recipes.load(base)
    shifted, awake = name.endswith(("-shifted", "-awake")), "-awake" in name
    network = recipe.network
    woken = {"gain": network.gain, "bias": network.bias, "initial_state": network.initial_state}
    expected = replace(paper.network, **woken) if awake else paper.network
    assert network == replace(expected, **ALSO.get(name, {}))
    assert (network.gain != paper.network.gain) == awake
    assert recipe.data == (replace(paper.data, crop=1) if shifted else paper.data)
    assert recipe.learning != paper.learning or recipe.schedule != paper.schedule
    assert recipe.paper.test is None


@pytest.mark.parametrize(("name", "base"), FASHION.items())
def test_recipes_for_fashion_mnist_are_those_of_mnist_on_other_images(name: str, base: str):
    recipe, other = recipes.load(name), recipes.load(base)
    data = replace(other.data, name="fashion-mnist")
    assert replace(recipe, name=base, summary=other.summary) == replace(other, data=data)


@pytest.mark.parametrize(("name", "base"), BITS.items())
def test_bits_alone_have_the_layers_of_the_network_with_states(name: str, base: str):
    recipe, parent = recipes.load(name), recipes.load(base)
    assert recipe.network.dynamics == "hopfield" and recipe.learning.sign == "positive"
    smaller = {"dense": [2048, 2048], "per_class": 50} if "2fc" in name else {}
    for key in ("dense", "conv", "per_class"):
        assert getattr(recipe.network, key) == smaller.get(key, getattr(parent.network, key))


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_survives_being_written_and_read(name: str, tmp_path):
    recipe = recipes.load(name)
    path = tmp_path / "copy.toml"
    path.write_text(recipes.dumps(recipe))
    assert recipes.load(path) == recipe


@pytest.mark.parametrize("name", [*PAPER, *REFERENCES])
def test_recipes_of_the_paper_quote_its_result(name: str):
    recipe = recipes.load(name)
    assert recipe.paper.test is not None and recipe.paper.where
    of_ernoult = recipe.network.weights == "real" and recipe.data.name == "mnist"
    assert recipe.training.batch_size == (20 if of_ernoult else 64)


def test_mnist_conv_wa_is_the_row_of_the_table():
    recipe = recipes.load("mnist-conv-wa")
    with torch.device("meta"):
        net = recipe.build_network()
        optimizers = recipe.build_optimizers(net)
    conv = net.couplings[0]
    assert isinstance(conv, ConvPool) and (conv.kernel, conv.padding, conv.pool) == (5, 1, 3)
    assert net.layer_shapes == [(256, 8, 8), (512, 2, 2), (700,)]
    assert net.neuron == Heaviside(0.5, 0.5) and net.initial_state == 1
    learning = recipe.build_learning()
    assert learning.free_steps == 100 and learning.nudge == "constant" and learning.beta == 1  # type: ignore[attr-defined]
    assert [(g["gamma"], g["tau"]) for g in optimizers.bop.param_groups] == [
        (5e-8, 2e-7),
        (5e-8, 8e-8),
        (5e-8, 8e-8),
    ]
    assert [g["lr"] for g in optimizers.sgd.param_groups] == [1e-5, 5e-6, 2e-6]
    assert optimizers.bop.param_groups[0]["noise"] == 2


@pytest.mark.parametrize(
    ("typed", "toml"),
    [
        ("optimizer.gamma=1e-4,1e-5", "optimizer.gamma=[1e-4, 1e-5]"),
        ("optimizer.gamma= 1e-4 , 1e-5 ", "optimizer.gamma=[1e-4, 1e-5]"),
        ("network.dense=32,16", "network.dense=[32, 16]"),
        ("network.dense=32", "network.dense=[32]"),
        ("network.dense=", "network.dense=[]"),
    ],
)
def test_lists_need_no_brackets_on_the_command_line(typed: str, toml: str):
    base = ["optimizer.gamma=1e-5", "optimizer.tau=1e-7", "optimizer.lr_bias=0.1"]
    assert recipes.load("digits-1fc-w", [*base, typed]) == recipes.load(
        "digits-1fc-w", [*base, toml]
    )
    # Where there is no list, a comma is a comma.
    assert (
        recipes.load("digits-1fc-w", ["paper.where=Table 1, left"]).paper.where == "Table 1, left"
    )


def test_networks_start_as_the_paper_says():
    generator = random_streams(0)["init"]
    net = recipes.load("digits-conv-wa").build_network(generator)
    assert not any(coupling.bias.any() for coupling in net.couplings)
    net = recipes.load("digits-1fc-w", ["network.scale=0.02"]).build_network(generator)
    assert [coupling.scale.item() for coupling in net.couplings] == [pytest.approx(0.02)] * 2
    assert net.couplings[0].bias.any()


@pytest.mark.parametrize("weights", ["binary", "real"])
def test_a_gain_makes_couplings_stronger_before_training(weights: str):
    def strengths(*more: str) -> list[torch.Tensor]:
        rates = "optimizer.lr_weight=0.1"
        recipe = recipes.load("digits-conv-w", [f"network.weights={weights}", rates, *more])
        couplings = recipe.build_network(torch.Generator().manual_seed(0)).couplings
        return [c.scale if c.binary else c.weight for c in couplings]

    plain, one, each = strengths(), strengths("network.gain=2"), strengths("network.gain=[3, 1, 2]")
    for before, doubled in zip(plain, one, strict=True):
        assert torch.equal(doubled, 2 * before)
    for before, after, gain in zip(plain, each, (3, 1, 2), strict=True):
        assert torch.equal(after, gain * before)


def test_biases_are_drawn_or_zero_and_moved_before_training():
    def biases(*overrides: str) -> list[torch.Tensor]:
        recipe = recipes.load("digits-conv-w", overrides)
        net = recipe.build_network(torch.Generator().manual_seed(0))
        return [c.bias.detach() for c in net.couplings if c.bias is not None]

    moved = biases("network.bias=[0, 0.5, -0.25]")
    assert all(
        torch.equal(b, a + c) for a, b, c in zip(biases(), moved, (0, 0.5, -0.25), strict=True)
    )
    same = biases("network.bias=0.25", "network.zero_bias=true")
    assert all((bias == 0.25).all() for bias in same)
    with pytest.raises(BinepError, match=r"network\.bias.*3"):
        recipes.load("digits-conv-w", ["network.bias=[0.5, 0.5]"])


def test_the_seed_decides_the_network():
    def signs(seed: int):
        generator = random_streams(seed)["init"]
        return recipes.load("digits-1fc-w").build_network(generator).couplings[0].signs

    assert torch.equal(signs(1), signs(1))
    assert not torch.equal(signs(1), signs(2))


@pytest.mark.parametrize("name", ["", "../x", "my net/v2", ".hidden", "x" * 201, "two\nlines"])
def test_a_name_that_no_folder_can_have_is_refused(name: str, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "digits-1fc-w"\nname = {json.dumps(name)}\n')
    with pytest.raises(BinepError, match="name=.*without slashes"):
        recipes.load(path)


def test_rates_follow_their_schedule():
    recipe = recipes.load(
        "digits-1fc-w",
        [
            "network.learn_scale=true",
            "optimizer.lr_scale=[1e-2, 1e-3]",
            "schedule.lr_scale.at=[10]",
            "schedule.lr_scale.factor=0.1",
            "schedule.gamma.every=2",
            "schedule.gamma.factor=0.5",
        ],
    )
    net = recipe.build_network()
    optimizers = recipe.build_optimizers(net)
    gamma = recipe.optimizer.gamma
    assert isinstance(gamma, list)
    seen = []
    for epoch in (0, 1, 2, 5, 9, 10):
        recipe.set_rates(optimizers, epoch)
        seen.append(
            (
                [g["lr"] for g in optimizers.scale_sgd.param_groups],
                optimizers.bop.param_groups[1]["gamma"] / gamma[1],
            )
        )
    before, after = [1e-2, 1e-3], pytest.approx([1e-3, 1e-4])
    assert seen == [
        (before, 1),
        (before, 1),
        (before, 0.5),
        (before, 0.25),
        (before, 0.0625),
        (after, 0.03125),
    ]


@pytest.mark.parametrize(
    ("shape", "halfway"), [("exponential", 0.2), ("linear", 0.52), ("cosine", 0.52)]
)
def test_smooth_schedules_end_where_they_should_and_stay(shape: str, halfway: float):
    schedule = RateSchedule(over=10, final=0.04, shape=shape)
    factors = [schedule.at_epoch(n) for n in range(14)]
    assert factors[0] == 1 and factors[5] == pytest.approx(halfway)
    assert factors[10:] == pytest.approx([0.04] * 4)
    assert factors[:11] == sorted(set(factors[:11]), reverse=True)


def test_steps_and_a_smooth_schedule_multiply():
    schedule = RateSchedule(over=2, final=4.0, at=[2], factor=0.5)
    assert [schedule.at_epoch(n) for n in range(4)] == [1, 2, 2, 2]


def test_a_smooth_schedule_may_begin_late():
    late = RateSchedule(after=6, over=4, final=0.04, shape="linear")
    soon = replace(late, after=0)
    factors = [late.at_epoch(n) for n in range(14)]
    assert factors == [1.0] * 6 + [soon.at_epoch(n) for n in range(8)]


def test_gamma_may_not_grow_above_1():
    grown = ["schedule.gamma.every=1", "schedule.gamma.factor=10.0"]
    recipes.load("mnist-1fc-w", [*grown, "training.epochs=5"])
    with pytest.raises(BinepError, match="schedule.gamma takes gamma up to 10: .*at most 1"):
        recipes.load("mnist-1fc-w", [*grown, "training.epochs=6"])


def test_a_file_may_extend_a_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "mnist-1fc-w"\n[learning]\nbeta = 0.5\n')
    mine, base = recipes.load(path), recipes.load("mnist-1fc-w")
    assert mine.name == "mine" and mine.learning.beta == 0.5
    assert mine.network == base.network and mine.learning.free_steps == 50
    # The paper's result is not that of a variant.
    assert base.paper.test == 2.07 and mine.paper.test is None


def test_overrides_take_toml_values_and_plain_words():
    recipe = recipes.load(
        "mnist-1fc-w",
        [
            "network.dense=[8, 9]",
            "optimizer.gamma=1e-3",
            "optimizer.lr_bias=0.1",
            "learning.sign=centered",
            "data.flip=true",
        ],
    )
    assert recipe.network.dense == [8, 9] and recipe.optimizer.gamma == [1e-3] * 3
    assert recipe.learning.sign == "centered" and recipe.data.flip is True


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning.bta=1", "learning.bta.*did you mean 'beta'.*free_steps"),
        ("lerning.beta=1", "lerning.*did you mean 'learning'"),
        ("learning.beta=0", "learning.beta=0.*other than 0"),
        ("learning.beta=strong", 'learning.beta="strong".*a number'),
        ("learning.free_steps=0", "learning.free_steps=0.*at least 1"),
        ("learning.free_steps=2.5", "learning.free_steps=2.5.*an integer"),
        ("learning.margin=-1", "learning.margin=-1.*at least 0"),
        ("learning.homeostasis=0.01", "learning.homeostasis=0.01: it needs learning.activity"),
        ("learning.activity=0.1", "learning.activity=0.1: it needs learning.homeostasis"),
        ("learning.activity=2", "learning.activity=2.*above 0"),
        ("learning.homeostasis=[1, 1, 1]", "learning.homeostasis.*3 values.*2 couplings"),
        ("learning.sign=centred", "learning.sign='centred'.*'centered'.*positive, random"),
        ("network.dense=wide", r'network.dense=\["wide"\].*a list of integers'),
        ("optimizer.gamma=1e-4,much", r'gamma=\[0.0001, "much"\].*a number or a list of numbers'),
        ("network.dense=[512, -1]", r"network.dense=\[512, -1\].*at least 1"),
        ("network.conv=[4, 4, 4, 4, 4, 4]", "conv.*leaves nothing|optimizer.gamma"),
        ("optimizer.gamma=[1e-4, 1e-4, 1e-4]", "optimizer.gamma.*3 values.*2 couplings"),
        ("optimizer.gamma=2", "optimizer.gamma=2.*at most 1"),
        ("optimizer.tau=nan", "optimizer.tau=NaN"),
        ("data.name=mnst", "data.name='mnst'.*'mnist'"),
        ("data.validation=60000", "data.validation=60000.*60000 training"),
        ("data.train=60001", "data.train=60001.*60000"),
        ("data.train=30", "training.batch_size=64: allowed is at most 30"),
        ("optimizer.sigma=0", "optimizer.sigma=0: allowed is a number, above 0 and at most 1"),
        ("network.feedback=0", "network.feedback=0: allowed is .* above 0"),
        ("network.feedback=1,1,1", "3 values, allowed is one number or 2"),
        ("network.learn_scale=true", "scale is claimed by no optimizer"),
        ("network.activations=binary", "needs? dynamics='energy'"),
        ("network.learn_scale=1", "network.learn_scale=1.*true or false"),
        ("training.epochs=true", "training.epochs=true.*an integer"),
        ("schedule.gamma=3", "schedule.gamma=3.*a section"),
        ("schedule.tau.final=0.5", "schedule.tau.final=0.5: it needs schedule.tau.over"),
        ("schedule.tau.after=2", "schedule.tau.after=2: it needs schedule.tau.over"),
        ("schedule.tau.factor=0.5", "schedule.tau.factor=0.5: it needs schedule.tau.at or"),
        ("schedule.tau.shape=cosin", "schedule.tau.shape='cosin'.*'cosine'"),
        ("schedule.lr_scale.every=3", "schedule.lr_scale is given.*optimizer.lr_scale is not"),
        ("beta", "section.key=value"),
        ("=3", "section.key=value"),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_is_allowed(override: str, message: str):
    with pytest.raises(BinepError, match=message) as caught:
        recipes.load("mnist-1fc-w", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["learning.margin=0.1"], "learning.margin"),
        (["learning.homeostasis=0.1", "learning.activity=0.1"], "learning.homeostasis"),
        (["hardware.stuck=0.1"], "imperfect hardware"),
    ],
)
def test_what_only_ep_does_is_refused_with_bptt(overrides: list[str], what: str):
    with pytest.raises(BinepError, match=f"{what} with learning.method='bptt'.*'ep'"):
        recipes.load("mnist-1fc-w-bptt", overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[learning\n", "not valid TOML"),
        ("extends = 3\n", "extends=3"),
        ('extends = "mine.toml"\n', "extends itself"),
        ('extends = "mnist-1fc-x"\n', "did you mean 'mnist-1fc-w'"),
        ("learning = 3\n", "learning=3.*section"),
        ("", "free_steps is missing"),
        ("\ud83d", "UTF-8"),
    ],
)
def test_broken_files_are_refused(text: str, message: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_bytes(
        text.encode("utf-16" if "\ud83d" in text else "utf-8", "surrogatepass")
    )
    with pytest.raises(BinepError, match=message) as caught:
        recipes.load("mine.toml")
    assert "\n" not in str(caught.value)


def test_unknown_recipes_and_missing_files_are_refused():
    with pytest.raises(BinepError, match="unknown recipe 'mnist-1fc'.*did you mean 'mnist-1fc"):
        recipes.load("mnist-1fc")
    with pytest.raises(BinepError, match="nowhere.toml: there is no such file"):
        recipes.load("nowhere.toml")


def test_two_hundred_mutated_files_give_a_recipe_or_one_line():
    """Whatever a slip of the keyboard does to a file, there is a recipe or one clear line."""
    rng = random.Random(0)
    texts = [recipes.dumps(recipes.load(name)) for name in DIGITS]
    junk = [
        "",
        "=",
        "[",
        "]",
        '"',
        "-1",
        "nan",
        "1e999",
        "true",
        "[]",
        "{}",
        "\x00",
        "é",
        ".",
        "9" * 30,
    ]
    refused = 0
    for _ in range(200):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            tokens = re.split(r"(\W)", text)
            tokens[rng.randrange(len(tokens))] = rng.choice(junk)
            text = "".join(tokens)
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            refused += 1
            continue
        try:
            asdict(recipes.from_table(table))
        except BinepError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


# --- what is not to be taken at its word ---------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [
        "network.dense=[16777216, 16777216]",
        "network.conv=[65536, 65536]",
    ],
)
def test_what_does_not_fit_into_memory_is_told_before_it_is_built(override: str):
    name = "digits-conv-w" if "conv" in override else "digits-1fc-w"
    kernel = ["network.kernel=1"] if "conv" in override else []
    rates = ["optimizer.gamma=1e-4", "optimizer.tau=1e-6", "optimizer.lr_bias=0.1"]
    recipe = recipes.load(name, [override, *kernel, *rates])  # reading it takes nothing
    with pytest.raises(
        BinepError, match=f"{name}.* would take at least .* GB of memory, this machine"
    ):
        recipe.build_network()


@pytest.mark.parametrize(
    "override",
    [
        "network.dense=[100000000]",
        "network.per_class=100000000",
        "learning.free_steps=1000000",
        "learning.nudged_steps=1000000",
        "training.epochs=1000000000000",
        "training.batch_size=1000000000000",
        "data.crop=1000000",
    ],
)
def test_sizes_have_an_end(override: str):
    with pytest.raises(BinepError, match=r"allowed is .* at most \d+"):
        recipes.load("digits-1fc-w", [override])


@pytest.mark.parametrize("key", ["kernel", "padding", "pool"])
def test_sizes_of_a_convolution_have_an_end(key: str):
    with pytest.raises(BinepError, match=f"network.{key}=100000.* at most 4096"):
        recipes.load("digits-conv-w", [f"network.{key}=100000"])


@pytest.mark.parametrize("text", ["plain", "a \x7f b", 'quotes " and \\', "tab\tline\n", "é 😀"])
def test_any_text_is_read_back_as_it_was(text: str, tmp_path: Path):
    recipe = replace(recipes.load("digits-1fc-w"), summary=text)
    (tmp_path / "recipe.toml").write_text(recipes.dumps(recipe), "utf-8", newline="")
    assert recipes.load(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize("name", ["a\x1b[2J", "del\x7f", "csi\x9b1m", "back\u202ewards"])
def test_a_name_does_not_steer_a_terminal(name: str):
    table = tomllib.loads(recipes.dumps(recipes.load("digits-1fc-w")))
    with pytest.raises(BinepError, match="allowed is what a folder can be called"):
        recipes.from_table({**table, "name": name})


def test_text_that_utf8_cannot_write_is_told():
    table = tomllib.loads(recipes.dumps(recipes.load("digits-1fc-w")))
    with pytest.raises(BinepError, match=r"summary=.*allowed is text that UTF-8 can write"):
        recipes.from_table({**table, "summary": "half of \udc80"})


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000])
def test_a_file_that_python_chokes_on_is_no_recipe(text: str, tmp_path: Path):
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(BinepError, match="odd.toml: "):
        recipes.load(tmp_path / "odd.toml")


def test_a_recipe_is_a_file_of_a_recipes_size(tmp_path: Path):
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(BinepError, match="large.toml: .* bytes, allowed are"):
        recipes.load(tmp_path / "large.toml")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.toml")
        with pytest.raises(BinepError, match="pipe.toml: it is not a file"):
            recipes.load(tmp_path / "pipe.toml")


def test_forty_recipes_that_extend_each_other_are_too_many(tmp_path: Path):
    for n in range(40):
        (tmp_path / f"{n}.toml").write_text(f'extends = "{tmp_path / str(n + 1)}.toml"\n')
    with pytest.raises(BinepError, match="more than 20 recipes extend each other"):
        recipes.load(tmp_path / "0.toml")


@pytest.mark.parametrize("name", ["", "x" * 60, "x" * 5000])
def test_a_name_that_is_none_does_not_list_all_recipes(name: str):
    with pytest.raises(BinepError) as error:
        recipes.load(name)
    assert len(str(error.value)) < 250 and "There are" in str(error.value)
