"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is two files: `NAME.safetensors` with the tensors (weights as bits, momenta, biases,
alphas, the states of all random streams, the epoch's order of samples) and `NAME.json` with the
numbers, the SHA-256 of the first file and of itself. The JSON is written last: with it the
checkpoint exists. Two are kept, so that one damaged on disk costs only the work since the other.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Bop, PositiveSGD
from binep.core.saving import check_tensors
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


def load(
    folder: Path, warn: Callable[[str], None], *, newest: bool = False
) -> tuple[Tensors, Facts] | None:
    """The newest checkpoint that is whole; damaged ones are named to `warn` and passed over.

    None if there is none; an error if there are some and all are damaged, or with `newest` if
    the newest is.
    """
    damage = []
    for path in _found(folder):
        try:
            found = _read(path)
        except _DamagedError as error:
            damage.append(f"{path.name}: {error}")
            if newest:
                raise BinepError(
                    f"{folder}: its newest checkpoint is damaged ({damage[0]}); binep train "
                    "--resume goes on from the one before"
                ) from None
            continue
        for line in damage:
            warn(f"{line}; going on from {path.name}")
        return found
    if damage:
        raise BinepError(f"{folder}: no checkpoint is whole ({'; '.join(damage)})")
    return None


def restore(trainer: Trainer, tensors: Tensors, facts: Facts) -> None:
    """Put a trainer, freshly built from the same recipe, where the checkpoint left it.

    A seal proves that a checkpoint is whole, not that it is of this training: before anything is
    changed all that is in it is checked.
    """
    _check(trainer, tensors, facts)
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


def restore_network(network: Network, tensors: Tensors) -> None:
    """Give a network the parameters of a checkpoint, once they have been found to fit."""
    _check_tensors(network.stored(), tensors)
    network.restore(tensors)


def _check(trainer: Trainer, tensors: Tensors, facts: Facts) -> None:
    """See that a checkpoint is of a trainer like this one, in every shape, type and number."""
    stored = trainer.network.stored()
    _check_tensors(stored, tensors)
    known = {*stored, *(f"random.{name}" for name in trainer.streams)}
    momenta = {f"momentum.{n}": p for n, p in _momenta(trainer)}
    kept = {name: p for name, p in momenta.items() if name in tensors}
    _check_tensors(kept, tensors)
    for name in kept:
        decay, flips = (facts.get(key, {}).get(name[9:]) for key in ("decay", "flips"))
        if not (isinstance(decay, float) and 0 < decay <= 1):
            raise BinepError(
                f"checkpoint: decay of {name} is {decay!r}: allowed is above 0 up to 1"
            )
        if not _is_count(flips):
            raise BinepError(f"checkpoint: flips of {name} are {flips!r}: allowed is a count")
    for name in trainer.streams:
        if f"random.{name}" not in tensors:
            raise BinepError(f"checkpoint: random.{name} is missing")
    samples, order = len(trainer.dataset.train), tensors.get("order")
    if order is not None and (
        order.shape != (samples,)
        or order.dtype != torch.int32
        or not torch.equal(order.sort().values, torch.arange(samples, dtype=torch.int32))
    ):
        raise BinepError(f"checkpoint: order is none of the {samples} training samples")
    for key, most in (("epoch", None), ("position", samples)):
        if not _is_count(facts.get(key)) or (most is not None and facts[key] > most):
            raise BinepError(f"checkpoint: {key}={facts.get(key)!r}: allowed is a count")
    unknown = sorted(set(tensors) - known - set(momenta) - {"order"})
    if unknown:
        raise BinepError(f"checkpoint: {unknown[0]} does not belong to this network")


def _check_tensors(like: Tensors, tensors: Tensors) -> None:
    try:
        check_tensors(like, tensors)
    except BinepError as error:
        raise BinepError(f"checkpoint: {error}") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _momenta(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """What Bop flips, by the number of its coupling."""
    bop = trainer.optimizers.bop
    for group in bop.param_groups if bop is not None else []:
        yield str(group["coupling"]), group["params"][0]


def _pack(trainer: Trainer) -> tuple[Tensors, Facts]:
    tensors = trainer.network.stored()
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
