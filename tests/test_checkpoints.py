"""Checkpoints: a trainer put together again is the one that was saved, down to its counts."""

from pathlib import Path

import pytest
import torch

from binep import BinepError, data
from binep.training import checkpoints, runs
from conftest import small_recipe

CPU = torch.device("cpu")


def test_a_restored_trainer_has_all_that_the_saved_one_had(tmp_path: Path):
    # Rates so large that weights flip and alphas are stopped at their floor.
    large = ["optimizer.lr_scale=100.0", "optimizer.tau=1e-9", "network.learn_scale=true"]
    recipe, digits = small_recipe("digits-1fc-w", *large), data.load("digits")
    saved = runs.build_trainer(recipe, digits, 0, CPU, "reference")
    batches = iter(range(3))
    assert saved.epoch(lambda: next(batches) < 2) is None
    checkpoints.save(tmp_path, saved)

    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    restored = runs.build_trainer(recipe, digits, 1, CPU, "reference")
    checkpoints.restore(restored, *found)
    for mine, theirs in zip(restored.network.parameters(), saved.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    after, before = restored.optimizers, saved.optimizers
    for mine, theirs in zip(after.bop.state.values(), before.bop.state.values(), strict=True):
        assert torch.equal(mine["momentum"], theirs["momentum"])
        assert mine["decay"] == theirs["decay"] and mine["flips"] == theirs["flips"] > 0
    assert after.scale_sgd.clamped == before.scale_sgd.clamped > 0
    assert restored.progress.position == saved.progress.position == 600
    assert restored.progress.tally == saved.progress.tally
    for name, stream in saved.streams.items():
        assert torch.equal(restored.streams[name].get_state(), stream.get_state())


def test_a_run_of_a_gpu_does_not_go_on_on_a_cpu(tmp_path: Path):
    """Their generators have other states; nothing is changed by the try."""
    recipe, digits = small_recipe("digits-1fc-w"), data.load("digits")
    trainer = runs.build_trainer(recipe, digits, 0, CPU, "reference")
    checkpoints.save(tmp_path, trainer)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    tensors, facts = found
    tensors["random.shuffle"] = torch.zeros(16, dtype=torch.uint8)  # as long as CUDA's
    other = runs.build_trainer(recipe, digits, 1, CPU, "reference")
    before = [parameter.clone() for parameter in other.network.parameters()]
    with pytest.raises(BinepError, match="bit for bit on cpu: allowed is --device cuda"):
        checkpoints.restore(other, tensors, facts)
    for mine, theirs in zip(other.network.parameters(), before, strict=True):
        assert torch.equal(mine, theirs)
