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


def test_a_run_of_0_1_on_a_gpu_does_not_go_on_on_a_cpu(tmp_path: Path):
    """It drew on the GPU; nothing is changed by the try, and the network can still be read."""
    recipe, digits = small_recipe("digits-1fc-w"), data.load("digits")
    trainer = runs.build_trainer(recipe, digits, 0, CPU, "reference")
    checkpoints.save(tmp_path, trainer)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    tensors, facts = found
    for name in ("noise", "shuffle", "augment"):
        tensors[f"random.{name}"] = torch.zeros(16, dtype=torch.uint8)  # as long as CUDA's
    other = runs.build_trainer(recipe, digits, 1, CPU, "reference")
    before = [parameter.clone() for parameter in other.network.parameters()]
    with pytest.raises(
        BinepError, match=r"0\.1 draws .* on a GPU.* on cpu: allowed is --device cuda"
    ):
        checkpoints.restore(other, tensors, facts)
    for mine, theirs in zip(other.network.parameters(), before, strict=True):
        assert torch.equal(mine, theirs)
    checkpoints.restore_network(other.network, tensors)
    for mine, theirs in zip(other.network.parameters(), trainer.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_of_0_1_on_a_gpu_goes_on_with_its_own_generators(tmp_path: Path):
    device = torch.device("cuda")
    recipe, digits = small_recipe("digits-1fc-w"), data.load("digits").to(device)
    old = runs.build_trainer(recipe, digits, 0, device, "reference")
    for name in ("noise", "shuffle", "augment"):
        old.streams[name] = torch.Generator(device).manual_seed(7)
    old.epoch()
    checkpoints.save(tmp_path, old)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    resumed = runs.build_trainer(recipe, digits, 0, device, "reference")
    checkpoints.restore(resumed, *found)
    for trainer in (old, resumed):
        trainer.epoch()
    for mine, theirs in zip(resumed.network.parameters(), old.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
