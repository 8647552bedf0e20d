"""Whatever ends a training or fails its writes: it goes on to the same end, see `benchmarks`."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from binep import BinepError, data, files
from binep.training import checkpoints, runs
from binep.training.checkpoints import Tensors
from binep.training.trainer import Trainer
from conftest import small_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import faults as layer
from faults import Faults, PowerCutError

TORTURE = Path(layer.__file__).with_name("torture.py")


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path, list[Tensors]]:
    """A trainer after three mini-batches, a folder with two checkpoints, and all three."""
    recipe, digits = small_recipe("digits-1fc-w"), data.load("digits")
    trainer = runs.build_trainer(recipe, digits, 0, torch.device("cpu"), "reference")
    folder, beside = (tmp_path_factory.mktemp(name) for name in ("two", "beside"))
    seen = []
    for n in range(3):
        trainer.epoch(lambda: False)
        where = folder if n < 2 else beside
        checkpoints.save(where, trainer)
        seen.append(loaded(where))
    return trainer, folder, seen


def loaded(folder: Path) -> Tensors:
    found = checkpoints.load(folder, warn=pytest.fail)
    assert found is not None
    return found[0]


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["fail", "full", "short", "power"])
def test_any_system_call_of_a_checkpoint_may_go_wrong(kind: str, third, tmp_path: Path):
    """It is there whole afterwards, or the one before is; the next one is written as ever."""
    trainer, two, (_, second, last) = third
    shutil.copytree(two, tmp_path / "counted")
    with Faults(tmp_path / "counted") as counted:
        checkpoints.save(tmp_path / "counted", trainer)
    assert counted.calls.count("replace") == 2 and counted.calls.count("unlink") == 2
    ends = set[str]()
    for at in range(len(counted.calls)):
        folder = shutil.copytree(two, tmp_path / str(at))
        faults = Faults(folder, at, kind, seed=at)
        try:
            with faults:
                checkpoints.save(folder, trainer)
            end = "saved"
        except BinepError as error:
            assert "cannot write" in str(error) and "\n" not in str(error)
            end = "told"
        except PowerCutError:
            faults.forget()
            end = "off"
        ends.add(end)
        assert faults.happened
        found = loaded(folder)
        assert same(found, last) or (end != "saved" and same(found, second))
        # The next training begins so.
        files.remove_leftovers(folder)
        checkpoints.save(folder, trainer)
        assert same(loaded(folder), last)
        stems = sorted(path.stem for path in folder.iterdir())
        assert len(stems) == 2 * checkpoints.KEPT == 2 * len(set(stems))
    assert ends == {"fail": {"told", "saved"}, "full": {"told", "saved"}}.get(
        kind, {"short": {"saved"}, "power": {"off"}}.get(kind)
    )


@pytest.mark.parametrize("kind", ["fail", "full"])
def test_a_line_that_could_not_be_added_is_not_there(kind: str, tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for at in range(4):
        path.write_text("first\n")
        with Faults(tmp_path, at, kind) as faults, suppress(BinepError):
            files.append_line(path, "second")
        assert faults.happened and path.read_text() == "first\n"


def test_a_write_that_takes_half_each_time_is_whole_in_the_end(tmp_path: Path):
    with Faults(tmp_path, at=1, kind="short") as faults:
        files.write_whole(tmp_path / "file", b"0123456789")
    assert faults.calls.count("write") == 2
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "kills"), [(1, 50), (2, 6)])
def test_fifty_kills_lead_to_the_same_end(processes: int, kills: int):
    words = [TORTURE, "--kills", str(kills), "--processes", str(processes), "--seed", "1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= kills and found["trainings_finished_bit_identical"] > 0
    if processes == 1:
        assert set(found["by"]) >= {"fail", "full", "kill", "moment", "power"}
