"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is two files: `NAME.safetensors` with the tensors (weights as bits, momenta, biases,
alphas, the states of all random streams, the epoch's order of samples) and `NAME.json` with the
numbers, the SHA-256 of the first file and of itself. The JSON is written last: with it the
checkpoint exists. Two are kept, so that one damaged on disk costs only the work since the other.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Bop, PositiveSGD
from binep.errors import BinepError
from binep.files import write_whole
from binep.training.trainer import Progress, Trainer

FORMAT = 1
KEPT = 2

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


def save(folder: Path, trainer: Trainer) -> Path:
    """Write a checkpoint of a trainer that stands between two mini-batches; returns its JSON."""
    tensors, facts = _pack(trainer)
    progress = trainer.progress
    stem = folder / f"checkpoint-{progress.epoch:06d}-{progress.position:08d}"
    blob = safetensors.torch.save(tensors)
    facts["sha256"] = hashlib.sha256(blob).hexdigest()
    write_whole(stem.with_suffix(".safetensors"), blob)
    write_whole(stem.with_suffix(".json"), _sealed(facts))
    for old in _found(folder)[KEPT:]:
        _remove(old)
    return stem.with_suffix(".json")


def load(folder: Path, warn: Callable[[str], None]) -> tuple[Tensors, Facts] | None:
    """The newest checkpoint that is whole; damaged ones are named to `warn` and passed over.

    None if there is none; an error if there are some and all are damaged.
    """
    damage = []
    for path in _found(folder):
        try:
            found = _read(path)
        except _DamagedError as error:
            damage.append(f"{path.name}: {error}")
            continue
        for line in damage:
            warn(f"{line}; going on from {path.name}")
        return found
    if damage:
        raise BinepError(f"{folder}: no checkpoint is whole ({'; '.join(damage)})")
    return None


def restore(trainer: Trainer, tensors: Tensors, facts: Facts) -> None:
    """Put a trainer, freshly built from the same recipe, where the checkpoint left it."""
    _restore_streams(trainer, tensors)
    restore_network(trainer.network, tensors)
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            (parameter,), n = group["params"], str(group["coupling"])
            if isinstance(optimizer, Bop) and f"momentum.{n}" in tensors:
                optimizer.state[parameter].update(
                    momentum=tensors[f"momentum.{n}"].to(parameter.device),
                    decay=facts["decay"][n],
                    flips=facts["flips"][n],
                )
            if isinstance(optimizer, PositiveSGD) and n in facts["clamped"]:
                count = torch.tensor(facts["clamped"][n], device=parameter.device)
                optimizer.state[parameter]["clamped"] = count
    order = tensors.get("order")
    trainer.progress = Progress(
        epoch=facts["epoch"],
        position=facts["position"],
        order=None if order is None else order.long().to(trainer.dataset.train.labels.device),
        tally=Tally(**facts["tally"]),
        seconds=facts["seconds"],
    )


def _restore_streams(trainer: Trainer, tensors: Tensors) -> None:
    """Let the random streams go on where they were.

    Version 0.1 drew shuffling, noise and augmentation on the GPU that trained. Such a run keeps
    generators of CUDA, and needs a GPU to go on.
    """
    device = trainer.dataset.train.labels.device
    states = {name: tensors[f"random.{name}"] for name in trainer.streams}
    foreign = [
        name
        for name, stream in trainer.streams.items()
        if states[name].shape != stream.get_state().shape
    ]
    if foreign and device.type != "cuda":
        raise BinepError(
            f"this run of binep 0.1 draws its random numbers ({', '.join(foreign)}) on a GPU, and "
            f"cannot go on bit for bit on {device.type}: allowed is --device cuda"
        )
    for name in foreign:
        trainer.streams[name] = torch.Generator(device)
    bop = trainer.optimizers.bop
    if "noise" in foreign and bop is not None:
        bop.generator = trainer.streams["noise"]
    for name, stream in trainer.streams.items():
        stream.set_state(states[name])


@torch.no_grad()
def restore_network(network: Network, tensors: Tensors) -> None:
    """Give a network the parameters of a checkpoint."""
    for n, coupling in enumerate(network.couplings):
        if coupling.binary:
            bits = np.unpackbits(tensors[f"couplings.{n}.bits"].numpy())
            bits = torch.from_numpy(bits[: coupling.signs.numel()])
            coupling.signs.copy_((2.0 * bits - 1).reshape(coupling.signs.shape))
            coupling.scale.copy_(tensors[f"couplings.{n}.scale"])
        else:
            coupling.weight.copy_(tensors[f"couplings.{n}.weight"])
        if coupling.bias is not None:
            coupling.bias.copy_(tensors[f"couplings.{n}.bias"])


def _pack(trainer: Trainer) -> tuple[Tensors, Facts]:
    tensors: Tensors = {}
    for n, coupling in enumerate(trainer.network.couplings):
        if coupling.binary:
            bits = np.packbits((coupling.signs.detach() > 0).flatten().cpu().numpy())
            tensors[f"couplings.{n}.bits"] = torch.from_numpy(bits)
            tensors[f"couplings.{n}.scale"] = coupling.scale.detach()
        else:
            tensors[f"couplings.{n}.weight"] = coupling.weight.detach()
        if coupling.bias is not None:
            tensors[f"couplings.{n}.bias"] = coupling.bias.detach()
    progress = trainer.progress
    facts: Facts = {
        "format": FORMAT,
        "epoch": progress.epoch,
        "position": progress.position,
        "seconds": progress.seconds,
        "tally": asdict(progress.tally),
        "decay": {},
        "flips": {},
        "clamped": {},
    }
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            (parameter,), n = group["params"], str(group["coupling"])
            state = optimizer.state[parameter]
            if isinstance(optimizer, Bop) and state:
                tensors[f"momentum.{n}"] = state["momentum"]
                facts["decay"][n], facts["flips"][n] = state["decay"], state["flips"]
            if isinstance(optimizer, PositiveSGD):
                facts["clamped"][n] = int(state.get("clamped", 0))
    for name, stream in trainer.streams.items():
        tensors[f"random.{name}"] = stream.get_state()
    if progress.order is not None:
        tensors["order"] = progress.order.int()
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, facts


# --- on disk ------------------------------------------------------------------------------------


class _DamagedError(Exception):
    """What is wrong with a checkpoint, in a few words."""


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by their JSON files, newest first."""
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def _remove(path: Path) -> None:
    # The JSON goes first: without it there is no checkpoint.
    for old in (path, path.with_suffix(".safetensors")):
        with suppress(OSError):
            old.unlink()


def _sealed(facts: Facts) -> str:
    """JSON with a seal: the SHA-256 of everything else in it."""
    return json.dumps({**facts, "seal": _seal(facts)}, indent=1) + "\n"


def _seal(facts: Facts) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> tuple[Tensors, Facts]:
    try:
        text = path.read_text("utf-8")
        facts = json.loads(text)
        seal = facts.pop("seal")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _DamagedError("not readable as JSON with a seal") from None
    # The text itself is compared too: what JSON does not care for, such as blanks, counts as well.
    if seal != _seal(facts) or text != _sealed(facts):
        raise _DamagedError("its seal is broken: it was damaged or altered")
    if facts["format"] != FORMAT:
        raise _DamagedError(f"format {facts['format']}, this version reads {FORMAT}")
    blob_path = path.with_suffix(".safetensors")
    try:
        blob = blob_path.read_bytes()
    except OSError as error:
        raise _DamagedError(f"{blob_path.name} cannot be read: {error.strerror}") from None
    if hashlib.sha256(blob).hexdigest() != facts["sha256"]:
        raise _DamagedError(f"{blob_path.name} was damaged or altered: its SHA-256 differs")
    return safetensors.torch.load(blob), facts
