"""The hardware report: counts checked by hand, the paper's factors, and error against faults."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from binep.errors import BinepError
from binep.hardware import costs, sweep
from binep.hardware.costs import Operations
from binep.hardware.operations import step_operations
from binep.training import recipe as recipes
from binep.training import runs


def count(name: str, *overrides: str) -> costs.HardwareReport:
    recipe = recipes.load(name, list(overrides))
    network = recipe.build_network(torch.Generator().manual_seed(0))
    x = torch.randint(0, 256, (3, *network.input_shape), dtype=torch.uint8)
    return costs.report(recipe, network, x, costs.load_costs())


def test_memory_by_hand():
    """64-24-10: 1776 synapses, 34 biases and 2 scales."""
    found = costs.memory(recipes.load("digits-1fc-w", ["network.dense=[24]"]))
    assert (found.synapses, found.others) == (1776, 36)
    assert found.run == 1776 + 32 * 36
    assert found.train == 33 * 1776 + 32 * 36
    assert found.latent == 65 * 1776 + 32 * 36
    narrow = recipes.load("digits-1fc-w", ["network.dense=[24]", "hardware.momentum_bits=5"])
    assert costs.memory(narrow).train == 6 * 1776 + 32 * 36


@pytest.mark.parametrize(
    ("name", "paper", "low", "high"),
    [
        ("mnist-1fc-w", 7.5, 7.4, 8.0),
        ("mnist-2fc-w-a", 2.0, 2.08, 2.14),
        ("mnist-conv-w", 9.0, 55.0, 64.0),
        ("cifar10-conv-w", 54.0, 61.5, 64.0),
    ],
)
def test_factors_of_the_paper(name: str, paper: float, low: float, high: float):
    """Fully connected ones come out; for convolutional ones the difference is explained."""
    recipe = recipes.load(name)
    reference, said = costs.reference_of(recipe)

    def factor(only_synapses: bool) -> float:
        mine, theirs = (
            costs.memory(each, real_bits=64, only_synapses=only_synapses).run
            for each in (recipe, reference)
        )
        return theirs / mine

    assert said == paper
    assert low <= round(factor(False), 2) <= round(factor(True), 2) <= high


def test_the_text_explains_only_what_differs():
    small = ["network.conv=[2]", "network.pool=2"]
    rates = ["optimizer.gamma=1e-4", "optimizer.tau=1e-6", "optimizer.lr_bias=0.1"]
    same = count("mnist-conv-w", *small, *rates, "learning.free_steps=2")
    assert "It does not say how it counted" in costs._compare(replace(same, paper=9.0))
    assert "does not say" not in costs._compare(replace(same, paper=same.synapse_factor))
    assert "The paper" not in costs._compare(replace(same, paper=None))


def test_operations_of_bits_by_hand():
    """64-24-20, T = 8: sums of 480 synapses, upwards on 20 and downwards on 24 neurons."""
    found = count(
        "digits-1fc-wa", "network.dense=[24]", "network.per_class=2", "learning.free_steps=8"
    )
    work = {each.what: each.operations for each in found.work}
    assert work["step"] == Operations(
        ands=4 * 480,
        popcount_bits=4 * 480,
        adds=44 + 4 * 44,
        multiplies=44,
        memory_bits=2 * 480,
        # State in and out, bias, drive out and in.
        neuron_bits=44 * 5 * 32,
    )
    inputs = Operations(
        adds=64 * 24, multiplies=24, memory_bits=64 * 24, neuron_bits=64 * 8 + 24 * 32
    )
    assert work["prediction"] == inputs + work["step"] * 8
    learning = Operations(
        ands=2 * (480 + 1536),
        adds=3 * (480 + 1536),
        memory_bits=64 * (480 + 1536),
        # What was sent is kept and read, biases are read and written.
        neuron_bits=2 * 44 + 64 * 44,
    )
    assert work["training sample"] == inputs + work["step"] * 18 + learning
    assert found.stored_bits == 1


def test_events_add_one_synapse_at_a_time_to_sums_in_memory():
    """64-24-20: half of the hidden neurons and a quarter of the outputs send something new."""
    recipe = recipes.load("digits-1fc-wa", ["network.dense=[24]", "network.per_class=2"])
    network = recipe.build_network()
    synapses = 0.5 * 480 + 0.25 * 480
    assert step_operations(network, [0.5, 0.25]) == Operations(
        adds=synapses + 4 * 44,
        multiplies=44,
        memory_bits=synapses,
        neuron_bits=2 * 32 * synapses + 44 * 5 * 32,
    )
    quiet = step_operations(network, [0.0, 0.0])
    assert quiet == Operations(adds=4 * 44, neuron_bits=44 * 5 * 32)


def test_scales_stand_inside_the_sum_down_a_convolution():
    """mnist-conv-wa: 256 x 8 x 8 neurons below sum over 512 channels, each with a scale."""
    network = recipes.load("mnist-conv-wa").build_network()
    step = step_operations(network)
    down, up, dense = 256 * 64 * 512, 512 * 4, 700 + 2048
    assert step.multiplies == down + up + dense
    assert down == 8_388_608
    neurons = 256 * 64 + 512 * 4 + 700
    # A subtraction a sum; those of the channels are added up, less the first of each neuron.
    assert step.adds == (2 * down - 256 * 64) + up + dense + 4 * neurons
    assert step.ands == 2 * 2 * (512 * 6 * 6 * 256 * 25 + 2048 * 700)


def test_scales_are_rounded_to_the_nearest_power_of_two():
    recipe = recipes.load("mnist-conv-w", ["network.gain=3", "network.power_of_two=true"])
    exact = replace(recipe, network=replace(recipe.network, power_of_two=False))
    pairs = zip(
        *(
            each.build_network(torch.Generator().manual_seed(0)).couplings
            for each in (recipe, exact)
        ),
        strict=True,
    )
    for rounded, drawn in pairs:
        ratio = (rounded.scale / drawn.scale).log2()
        assert ratio.abs().max() <= 0.5
        assert torch.equal(rounded.scale.log2(), drawn.scale.log2().round())
        assert torch.equal(rounded.signs, drawn.signs)
    for wrong in ("network.learn_scale=true", "network.weights=real"):
        with pytest.raises(BinepError, match="network.power_of_two=true: allowed with"):
            recipes.load("mnist-conv-w", ["network.power_of_two=true", wrong])


def test_scales_by_powers_of_two_are_shifts():
    small = ["network.conv=[6, 8]", "network.kernel=3", "network.padding=1", "network.per_class=2"]
    rates = ["optimizer.gamma=1e-4", "optimizer.tau=1e-6", "optimizer.lr_bias=0.1"]
    plain, shifted = (
        count("digits-conv-wa", *small, *rates, *more).work[0].operations
        for more in ([], ["network.power_of_two=true"])
    )
    assert plain.shifts == 0 < plain.multiplies == shifted.shifts
    assert shifted.multiplies == 0
    assert replace(shifted, shifts=0.0, multiplies=plain.multiplies) == plain


def test_centered_nudges_take_two_nudged_phases():
    small = ["digits-1fc-wa", "network.dense=[24]", "learning.nudged_steps=3"]
    found = [count(*small, f"learning.sign={sign}") for sign in ("positive", "centered")]
    one, both = ({each.what: each.operations for each in report.work} for report in found)
    assert both["training sample"] == one["training sample"] + one["step"] * 3


def test_operations_of_a_convolution_by_hand():
    """1-4 channels, 5x5 kernels, padded: 64 positions of 8x8, used at every one."""
    recipe = recipes.load("digits-conv-wa", ["network.conv=[4]", "network.per_class=2"])
    network = recipe.build_network()
    assert network.couplings[0].products((1, 8, 8)) == 4 * 25 * 64
    assert network.couplings[1].products((4, 4, 4)) == 64 * 20


def test_real_activations_add_and_real_weights_multiply():
    real = count("digits-1fc-w", "network.dense=[24]")
    step = real.work[0].operations
    assert step.ands == 0 and step.float_adds == 2 * 240 + 4 * 34 and step.float_multiplies == 34
    assert real.stored_bits == 32
    full = real.work[-1].operations
    assert full.float_multiplies == 64 * 24 + 30 * 2 * 240
    assert real.reference_name == "digits-1fc-w with real weights"


def test_activity_is_what_changes():
    recipe = recipes.load("digits-1fc-wa", ["network.dense=[24]", "learning.free_steps=30"])
    network = recipe.build_network()
    x = torch.randint(0, 256, (5, 64), dtype=torch.uint8)
    found, _ = costs.measure_activity(network, x, 30)
    assert len(found) == 30 and all(0 <= share <= 1 for step in found for share in step)
    assert found[0][0] > 0 and found[-1] == [0.0, 0.0]


def test_neurons_are_engaged_if_the_image_decides_what_they_send():
    recipe = recipes.load("digits-1fc-wa", ["network.dense=[24]", "network.initial_state=0.0"])
    network = recipe.build_network(torch.Generator().manual_seed(0))
    x = torch.randint(0, 256, (5, 64), dtype=torch.uint8)
    with torch.no_grad():
        network.couplings[0].bias[:3] = -9.0  # never on
        network.couplings[0].bias[3:5] = 9.0  # always on
    _, engaged = costs.measure_activity(network, x, 30)
    assert 0 < engaged[0] <= 24 - 5
    assert costs.measure_activity(network, x[:1], 30)[1] == [0, 0], "one image decides nothing"
    assert costs.measure_activity(network, x[:1].expand(4, -1), 30)[1] == [0, 0]


def test_energy_is_a_table_that_can_be_replaced(tmp_path: Path):
    mine = tmp_path / "mine.toml"
    # As before there were shifts, and memories by size.
    zeros = "\n".join(
        f"{kind} = 0" for kind in costs.KINDS if kind not in ("adds", "shifts", "neuron_bits")
    )
    mine.write_text(f'name = "mine"\n[picojoules]\nadds = 2.5\n{zeros}\n')
    chosen = costs.load_costs(mine)
    assert chosen.microjoules(Operations(adds=4e6, ands=9e9)) == pytest.approx(10.0)
    mine.write_text(mine.read_text().replace("multiplies = 0", "multiplies = 7", 1))
    assert costs.load_costs(mine).microjoules(Operations(shifts=1e6)) == pytest.approx(7.0)
    assert "Horowitz" in costs.load_costs().name
    text = mine.read_text()
    for content, message in [
        ("[picojoules]\nadds = 1\nmemory_bits = 1\n", "picojoules.ands=None: allowed is a num"),
        (text + "gates = 1\n", "unknown operation in costs .* 'gates'"),
        (text.replace("2.5", "-1"), "picojoules.adds=-1"),
        (text.replace("memory_bits = 0", ""), "picojoules.memory_bits=None"),
        (text + "[[memory]]\nname='x'\npicojoules=1", "either picojoules.memory_bits, or a list"),
        ("name = 3", r"section \[picojoules\] is missing"),
        ("[", "not valid TOML"),
    ]:
        mine.write_text(content)
        with pytest.raises(BinepError, match=message):
            costs.load_costs(mine)
    with pytest.raises(BinepError, match="there is no such file"):
        costs.load_costs(tmp_path / "none.toml")


def test_moving_a_bit_costs_by_the_size_of_the_memory():
    chosen, work = costs.load_costs(), Operations(memory_bits=1e6)
    prices = [chosen.microjoules(work, kilobytes * 8000) for kilobytes in (8, 9, 33, 1001)]
    assert prices == pytest.approx([0.15625, 0.3125, 1.5625, 20.3125])
    both = Operations(memory_bits=1e6, neuron_bits=2e6)
    assert chosen.microjoules(both, 8e9, 64) == pytest.approx(20.3125 + 2 * 0.15625)


def test_the_report_says_what_memory_is_priced_as():
    found = count("mnist-1fc-wa", "network.dense=[2048]", "learning.free_steps=2")
    stores = {each.what: each for each in found.stores}
    assert stores["parameters to run"].bits == found.memory.run
    assert stores["parameters to run"].priced_as == "1 MB SRAM"
    assert stores["parameters to train"].priced_as == "DRAM"
    assert stores["neurons"].bits == 96 * (2048 + 100) + 8 * 784
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(costs.render(found))
    text = " ".join(console.export_text().split())
    assert "parameters to train (7,476.6 kB) 20.3 pJ, DRAM" in text
    assert "neurons (26.6 kB) 0.312 pJ, 32 kB SRAM" in text


def test_the_report_reads_as_tables_and_as_json():
    found = count("digits-1fc-wa", "network.dense=[24]")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(costs.render(found))
    text = console.export_text()
    for needle in (
        "by SGD on latent weights",
        "ANDs",
        "energy",
        "activity after step",
        "1 bit",
        " of 24, ",
    ):
        assert needle in text
    assert json.loads(json.dumps(asdict(found)))["memory"]["synapses"] == 64 * 24 + 24 * 100


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> runs.Run:
    small = ["network.dense=[40]", "learning.free_steps=6", "training.epochs=1"]
    recipe = recipes.load("digits-1fc-wa", [*small, "training.batch_size=200"])
    return runs.train(recipe, out=tmp_path_factory.mktemp("sweep"), device="cpu")


def test_a_trained_network_can_be_put_on_worse_hardware(run: runs.Run):
    good = run.evaluate(device="cpu").error("average")
    assert sweep.on_hardware(run, []) is run
    same = sweep.on_hardware(run, ["hardware.stuck=0"]).evaluate(device="cpu")
    assert same.error("average") == good
    bad = sweep.on_hardware(run, ["hardware.weight_errors=0.5"]).evaluate(device="cpu")
    assert bad.error("average") > 60
    with pytest.raises(BinepError, match=r"only hardware\.\* can be changed"):
        sweep.on_hardware(run, ["learning.beta=1"])


def test_a_sweep_measures_every_fault_and_draws_it(run: runs.Run, tmp_path: Path, monkeypatch):
    few = {name: (label, values[:2]) for name, (label, values) in sweep.VALUES.items()}
    monkeypatch.setattr(sweep, "VALUES", few)
    found = sweep.sweep(run, epochs=1, images=50, device="cpu")
    put = {p.imperfection for p in found.points if not p.trained}
    assert put == set(few) - set(sweep.ONLY_IN_TRAINING)
    assert {p.imperfection for p in found.points if p.trained} == set(few)
    picture, numbers = sweep.write(found, tmp_path)
    assert picture.stat().st_size > 10_000
    assert len(json.loads(numbers.read_text())["points"]) == len(found.points)


def test_a_sweep_leaves_out_what_a_network_cannot_have_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch
):
    small = ["network.dense=[20]", "learning.free_steps=6", "training.epochs=1"]
    recipe = recipes.load("digits-1fc-w", small)
    real = runs.train(recipe, out=tmp_path, device="cpu")
    monkeypatch.setattr(sweep, "VALUES", {n: (t, v[:1]) for n, (t, v) in sweep.VALUES.items()})
    kept: list[int] = []
    found = sweep.sweep(real, images=50, device="cpu", keep=lambda so_far: kept.append(1))
    assert [p.imperfection for p in found.points] == ["weight_errors", "stuck"]
    assert len(kept) == 2  # after every point
    broken = sweep.on_hardware(real, ["hardware.weight_errors=0.5"])
    stuck = sweep.sweep(broken, images=50, device="cpu").points[1]
    assert stuck.error > found.points[1].error + 20
    floating = replace(recipe, network=replace(recipe.network, weights="real"))
    with pytest.raises(BinepError, match="has real weights"):
        sweep.sweep(replace(real, recipe=floating), images=50, device="cpu")


def test_the_papers_factor_is_that_of_its_own_network():
    assert costs.reference_of(recipes.load("mnist-conv-w"))[1] == 9
    smaller = recipes.load("mnist-conv-w", ["network.conv=[8, 8]"])
    reference, factor = costs.reference_of(smaller)
    assert factor is None and reference.network.conv == [8, 8]


def test_bits_alone_take_one_bit_of_a_neuron_and_only_the_sweeps_until_rest():
    bits = ["network.dynamics=hopfield", "network.dense=[24]", "network.per_class=1"]
    found = count("digits-1fc-wa", *bits)
    energy = count("digits-1fc-wa", *bits[1:])
    stores = {each.what: each.bits for each in found.stores}
    # 24 + 10 bits and biases, drives of 10 outputs, 64 pixels.
    assert stores["neurons"] == 34 * (1 + 32) + 10 * 32 + 64 * 8
    assert found.stored_bits == 1
    assert 0 < len(found.activity) < len(energy.activity)
    assert not any(found.activity[-1])
    one = {each.what: each.operations for each in found.work}
    # Of each neuron two additions and a comparison; sums: 24 + 10 subtractions.
    assert one["step"].adds == 3 * 34 + 34
