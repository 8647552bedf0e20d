"""Checkpoints: a trainer put together again is the one that was saved, down to its counts."""

from pathlib import Path

import pytest
import torch

from binep import BinepError, data
from binep.training import checkpoints, runs
from conftest import small_recipe

CPU = torch.device("cpu")


@pytest.mark.parametrize("more", [[], ["optimizer.sigma=0.01"]], ids=["bop", "second order"])
def test_a_restored_trainer_has_all_that_the_saved_one_had(tmp_path: Path, more: list[str]):
    # Rates so large that weights flip and alphas are stopped at their floor.
    large = ["optimizer.lr_scale=100.0", "optimizer.tau=1e-9", "network.learn_scale=true", *more]
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
        assert mine.keys() == theirs.keys() and ("square" in mine) == bool(more)
        for array in set(mine) - {"decay", "flips"}:
            assert torch.equal(mine[array], theirs[array]) and theirs[array].any()
        assert mine["decay"] == theirs["decay"] and mine["flips"] == theirs["flips"] > 0
    assert after.scale_sgd.clamped == before.scale_sgd.clamped > 0
    assert restored.progress.position == saved.progress.position == 600
    assert restored.progress.tally == saved.progress.tally
    for name, stream in saved.streams.items():
        assert torch.equal(restored.streams[name].get_state(), stream.get_state())


@pytest.mark.parametrize("gamma", [0.3, 0.95, 1.0])
def test_a_momentum_that_has_decayed_for_long_is_restored_at_any_moment(
    gamma: float, tmp_path: Path
):
    recipe, digits = small_recipe("digits-1fc-w", f"optimizer.gamma={gamma}"), data.load("digits")
    saved = runs.build_trainer(recipe, digits, 0, CPU, "reference")
    seen = []
    for _ in range(8):
        saved.epoch(lambda: False)
        checkpoints.save(tmp_path, saved)
        found = checkpoints.load(tmp_path, warn=pytest.fail)
        assert found is not None
        restored = runs.build_trainer(recipe, digits, 0, CPU, "reference")
        checkpoints.restore(restored, *found)
        after, before = (each.optimizers.bop.state for each in (restored, saved))
        for mine, theirs in zip(after.values(), before.values(), strict=True):
            assert torch.equal(mine["momentum"], theirs["momentum"])
            assert mine["decay"] == theirs["decay"]
            seen.append(theirs["decay"])
    assert max(seen) > 1 or gamma == 1


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


def _altered(**changes):
    def alter(tensors, facts):
        for name, change in changes.items():
            name = name.replace("__", ".")
            if name in facts:
                facts[name] = change(facts[name])
            elif change is None:
                del tensors[name]
            else:
                tensors[name] = change(tensors[name])

    return alter


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (_altered(momentum__0=lambda m: torch.cat([m, m])), "momentum.0 is torch.float32 of shape"),
        (_altered(momentum__0=lambda m: m[:0]), "momentum.0 is torch.float32 of shape"),
        (_altered(momentum__0=lambda m: m.T.contiguous()), "momentum.0 is torch.float32 of shape"),
        (_altered(momentum__0=lambda m: m.double()), "momentum.0 is torch.float64"),
        (_altered(momentum__1=lambda m: m * float("nan")), "momentum.1 holds NaN"),
        (_altered(couplings__0__bias=lambda b: b + float("inf")), "couplings.0.bias holds NaN"),
        (_altered(couplings__1__bits=lambda b: b[1:]), "couplings.1.bits is torch.uint8"),
        (_altered(couplings__1__scale=None), "couplings.1.scale is missing"),
        (_altered(order=lambda o: o * 0), "order is none of"),
        (_altered(order=lambda o: o[1:]), "order is none of"),
        (_altered(random__sign=None), "random.sign is missing"),
        (_altered(decay=lambda d: {**d, "0": 0.0}), "decay of momentum.0 is 0.0"),
        (_altered(decay=lambda d: {**d, "0": 2.0}), "decay of momentum.0 is 2.0"),
        (_altered(flips=lambda f: {**f, "0": -1}), "flips of momentum.0"),
        (_altered(position=lambda p: 10**9), "position=1000000000"),
        (_altered(position=lambda p: p + 1), "position=601: allowed is a multiple of 200"),
        (_altered(position=lambda p: True), "position=True"),
        (_altered(epoch=lambda e: 10**12), "epoch=1000000000000"),
        (_altered(epoch=lambda e: "1"), "epoch='1'"),
        (_altered(seconds=lambda s: -1.0), "seconds=-1.0"),
        (_altered(seconds=lambda s: None), "seconds=None"),
        (_altered(seconds=lambda s: 10**400), "seconds=1000"),
        (_altered(tally=lambda t: {**t, "loss": 10**400}), "tally={"),
        (_altered(tally=lambda t: {**t, "flips": [1]}), "tally={"),
        (_altered(tally=lambda t: {**t, "flips": [1, 2, 3]}), "tally={"),
        (_altered(tally=lambda t: {**t, "samples": "many"}), "tally={"),
        (_altered(tally=lambda t: {**t, "flips": [1.5]}), "tally={"),
        (_altered(tally=lambda t: {**t, "more": 1}), "tally={"),
        (_altered(tally=lambda t: []), r"tally=\[\]"),
        (_altered(clamped=lambda c: {"0": 2**70}), "clamped={"),
        (_altered(decay=lambda d: None), "decay=None"),
        (_altered(flips=lambda f: [0, 0]), r"flips=\[0, 0\]"),
        (_altered(momentum__1=None), "momentum.1 is missing"),
        (_altered(order=None), "order is none of"),
        (_altered(random__sign=lambda r: r[1:]), "random.sign is no state of a random stream"),
        (_altered(random__sign=lambda r: r * 0), "random.sign is no state of a random stream"),
        (_altered(random__sign=lambda r: r.float()), "random.sign is no state of a random stream"),
        (lambda tensors, facts: tensors.update(other=torch.zeros(1)), "other does not belong"),
    ],
)
def test_a_sealed_checkpoint_of_something_else_changes_nothing(alter, told: str, tmp_path: Path):
    recipe, digits = small_recipe("digits-1fc-w"), data.load("digits")
    saved = runs.build_trainer(recipe, digits, 0, CPU, "reference")
    batches = iter(range(3))
    saved.epoch(lambda: next(batches) < 2)
    checkpoints.save(tmp_path, saved)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    alter(*found)
    other = runs.build_trainer(recipe, digits, 1, CPU, "reference")
    before = [parameter.clone() for parameter in other.network.parameters()]
    with pytest.raises(BinepError, match=told):
        checkpoints.restore(other, *found)
    for mine, theirs in zip(other.network.parameters(), before, strict=True):
        assert torch.equal(mine, theirs)


def test_a_damaged_newest_checkpoint_is_told_and_never_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from binep.deploy.export import export

    recipe = small_recipe("digits-1fc-w", "training.epochs=2")
    run = runs.train(recipe, out=tmp_path, watcher=runs.Watcher())
    capsys.readouterr()
    newest = sorted(run.folder.glob("checkpoint-*.safetensors"))[-1]
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    run.evaluate("test")
    assert f"{newest.name} was damaged or altered" in capsys.readouterr().err
    with pytest.raises(BinepError, match="its newest checkpoint is damaged"):
        export(run, tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()
