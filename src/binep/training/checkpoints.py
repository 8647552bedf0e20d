"""Checkpoints: everything a run needs to resume as if it had never stopped.

A checkpoint is two files: `NAME.safetensors` with the tensors (weights as bits, momenta, biases,
alphas, the states of all random streams, the epoch's order of samples) and `NAME.json` with the
numbers, the SHA-256 of the first file and of itself, and which run it is of: recipe, seed, data
and metrics. The JSON is written last: with it the checkpoint exists. Two are kept, so that one
damaged on disk costs only the work since the other.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from binep.core.limits import MOST_EPOCHS
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Bop, PositiveSGD
from binep.core.saving import check_tensors
from binep.errors import LONGEST, BinepError
from binep.files import read_text, read_whole, write_whole
from binep.training.seals import ALTERED, sealed, unsealed
from binep.training.trainer import Progress, Trainer

FORMAT = 1
KEPT = 2
_MOST = 2**63 - 1
_CUDA_STATE = 16  # bytes of a stream's state on a GPU, where version 0.1 drew

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


def save(folder: Path, trainer: Trainer, run: Facts | None = None) -> Path:
    """Write a checkpoint of a trainer that stands between two mini-batches; returns its JSON.

    Args:
        run: what tells this run from others, kept with it.
    """
    tensors, facts = _pack(trainer)
    if run is not None:
        facts["run"] = run
    progress = trainer.progress
    stem = folder / _stem(progress.epoch, progress.position)
    blob = safetensors.torch.save(tensors)
    facts["sha256"] = hashlib.sha256(blob).hexdigest()
    write_whole(stem.with_suffix(".safetensors"), blob)
    write_whole(stem.with_suffix(".json"), sealed(facts))
    tidy(folder)
    return stem.with_suffix(".json")


def tidy(folder: Path) -> None:
    """Remove checkpoints older than those to keep, and remains of interrupted writes."""
    for old in _found(folder)[KEPT:]:
        _remove(old)
    _remove_orphans(folder)


def load(
    folder: Path, warn: Callable[[str], None], *, newest: bool = False
) -> tuple[Tensors, Facts] | None:
    """The newest whole checkpoint; damaged ones are reported to `warn` and skipped.

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


def newest_facts(folder: Path) -> Facts | None:
    """What the newest checkpoint says of itself; None if there is none or it is damaged."""
    for path in _found(folder)[:1]:
        with suppress(_DamagedError):
            return _read_facts(path)
    return None


def discard_after(folder: Path, facts: Facts) -> None:
    """Remove checkpoints of later moments: damaged ones that training does not go on from."""
    for path in _found(folder):
        if path.name > _stem(facts["epoch"], facts["position"]) + ".json":
            _remove(path)


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
                arrays = {
                    name: tensors[f"{name}.{n}"].to(parameter.device) for name in optimizer.arrays
                }
                optimizer.state[parameter].update(
                    **arrays, decay=facts["decay"][n], flips=facts["flips"][n]
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
    """Check that a checkpoint fits this trainer in every shape, type and number."""
    stored = trainer.network.stored()
    _check_tensors(stored, tensors)
    known = {*stored, *(f"random.{name}" for name in trainer.streams)}
    momenta = dict(_momenta(trainer))
    _check_facts(trainer, facts)
    # Before the first mini-batch there are none.
    begun = facts["epoch"] > 0 or facts["position"] > 0
    kept = {name: p for name, p in momenta.items() if begun or name in tensors}
    _check_tensors(kept, tensors)
    for name in kept:
        if name.startswith("square.") and bool((tensors[name] < 0).any()):
            raise BinepError(f"checkpoint: {name} holds numbers below 0")
        decay, flips = (facts[key].get(name.partition(".")[2]) for key in ("decay", "flips"))
        # It falls from 1, or from below 2 once a power of two was folded into the momentum.
        if not (isinstance(decay, float) and 0 < decay < 2):
            raise BinepError(
                f"checkpoint: decay of {name} is {decay!r}: allowed is above 0, below 2"
            )
        if not _is_count(flips):
            raise BinepError(f"checkpoint: flips of {name} are {flips!r}: allowed is a count")
    for name in trainer.streams:
        _check_stream(f"random.{name}", tensors)
    samples, order = len(trainer.dataset.train), tensors.get("order")
    if (order is None and facts["position"] > 0) or (
        order is not None
        and (
            order.shape != (samples,)
            or order.dtype != torch.int32
            or not torch.equal(order.sort().values, torch.arange(samples, dtype=torch.int32))
        )
    ):
        raise BinepError(f"checkpoint: order is none of the {samples} training samples")
    unknown = sorted(set(tensors) - known - set(momenta) - {"order"})
    if unknown:
        raise BinepError(f"checkpoint: {unknown[0]} does not belong to this network")


def _check_facts(trainer: Trainer, facts: Facts) -> None:
    """Check that a trainer like this could have written the numbers of a checkpoint."""
    position, size = facts.get("position", -1), trainer.batch_size
    binary = sum(coupling.binary for coupling in trainer.network.couplings)
    checks: dict[str, tuple[bool, str]] = {
        "epoch": (_is_count(facts.get("epoch"), MOST_EPOCHS), f"0 to {MOST_EPOCHS}"),
        "position": (
            _is_count(position, trainer.samples)
            and (position % size == 0 or position == trainer.samples),
            f"a multiple of {size} up to {trainer.samples}, or that",
        ),
        "seconds": (_is_amount(facts.get("seconds")), "a number of at least 0"),
        "tally": (
            _is_tally(facts.get("tally"), binary) and facts["tally"]["samples"] == position,
            "what was counted over the epoch's samples so far",
        ),
    }
    for key in ("decay", "flips"):
        checks[key] = type(facts.get(key)) is dict, "one for each coupling"
    clamped = facts.get("clamped")
    checks["clamped"] = (
        type(clamped) is dict and all(map(_is_count, clamped.values())),
        "a count for each coupling",
    )
    for key, (fits, words) in checks.items():
        if not fits:
            shown = repr(facts.get(key))[:LONGEST]
            raise BinepError(f"checkpoint: {key}={shown}: allowed is {words}")


def _is_tally(value: Any, binary: int) -> bool:
    """Whether a value is what `asdict` makes of a tally: counts, and sums that may be NaN.

    Args:
        binary: how many couplings count flips.
    """
    if type(value) is not dict or value.keys() != asdict(Tally()).keys():
        return False
    counts = dict(value)
    wrong, flips, *sums = (counts.pop(key) for key in ("wrong", "flips", "loss", "residual"))
    return (
        type(wrong) is dict
        and wrong.keys() == Tally().wrong.keys()
        and type(flips) is list
        and all(type(number) is float or _is_count(number) for number in sums)
        and all(map(_is_count, (*wrong.values(), *flips, *counts.values())))
        and (counts["batches"] == 0) == (counts["samples"] == 0)
        and len(flips) in ({binary} if counts["batches"] else {0, binary})
    )


def _check_stream(name: str, tensors: Tensors) -> None:
    """Check that a tensor is the state of a random stream, by trying it on a spare one."""
    state = tensors.get(name)
    if state is None:
        raise BinepError(f"checkpoint: {name} is missing")
    stream = torch.Generator()
    try:
        if state.shape == stream.get_state().shape:
            stream.set_state(state)
        elif state.dtype != torch.uint8 or state.shape != (_CUDA_STATE,):
            raise TypeError("of another type or size")
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise BinepError(f"checkpoint: {name} is no state of a random stream ({reason})") from None


def _check_tensors(like: Tensors, tensors: Tensors) -> None:
    try:
        check_tensors(like, tensors)
    except BinepError as error:
        raise BinepError(f"checkpoint: {error}") from None


def _is_count(value: Any, most: int = _MOST) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_amount(value: Any) -> bool:
    return _is_count(value) or (type(value) is float and 0 <= value < math.inf)


def _momenta(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """What Bop flips, by the names of the arrays that it keeps for it."""
    bop = trainer.optimizers.bop
    if bop is not None:
        for group in bop.param_groups:
            for array in bop.arrays:
                yield f"{array}.{group['coupling']}", group["params"][0]


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
                tensors |= {f"{array}.{n}": state[array] for array in optimizer.arrays}
                facts["decay"][n], facts["flips"][n] = state["decay"], state["flips"]
            if isinstance(optimizer, PositiveSGD):
                facts["clamped"][n] = int(state.get("clamped", 0))
    for name, stream in trainer.streams.items():
        tensors[f"random.{name}"] = stream.get_state()
    if progress.order is not None:
        tensors["order"] = progress.order.int()
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, facts


def digest(trainer: Trainer) -> bytes:
    """SHA-256 of everything that is learnt: two trainers with the same have the same bits."""
    tensors, facts = _pack(trainer)
    found = hashlib.sha256(json.dumps([facts[key] for key in ("decay", "flips")]).encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].numpy().tobytes())
    return found.digest()


# --- on disk ------------------------------------------------------------------------------------


class _DamagedError(Exception):
    """What is wrong with a checkpoint, in a few words."""


def _stem(epoch: int, position: int) -> str:
    return f"checkpoint-{epoch:06d}-{position:08d}"


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by their JSON files, newest first."""
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def _remove(path: Path) -> None:
    # The JSON goes first: without it there is no checkpoint. Where it cannot go, its tensors stay.
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.with_suffix(".safetensors").unlink(missing_ok=True)


def _remove_orphans(folder: Path) -> None:
    """Remove tensors without their JSON, left by an interrupted write or removal."""
    for blob in folder.glob("checkpoint-*.safetensors"):
        if not blob.with_suffix(".json").exists():
            with suppress(OSError):
                blob.unlink()


def _read_facts(path: Path) -> Facts:
    try:
        text = read_text(path)
        found = json.loads(text)
        facts, has_seal = unsealed(found)
    except (BinepError, ValueError, AttributeError, TypeError, RecursionError) as error:
        why = ALTERED if str(error) == ALTERED else "not readable as JSON with a seal"
        raise _DamagedError(why) from None
    # The text itself is compared too: what JSON does not care for, such as blanks, counts as well.
    if not has_seal or text != sealed(facts):
        raise _DamagedError(ALTERED)
    if facts.get("format") != FORMAT:
        raise _DamagedError(f"format {facts.get('format')}, this version reads {FORMAT}")
    return facts


def _read(path: Path) -> tuple[Tensors, Facts]:
    facts = _read_facts(path)
    blob_path = path.with_suffix(".safetensors")
    try:
        blob = read_whole(blob_path)
    except BinepError as error:
        raise _DamagedError(str(error)) from None
    if hashlib.sha256(blob).hexdigest() != facts.get("sha256"):
        raise _DamagedError(f"{blob_path.name} was damaged or altered: its SHA-256 differs")
    try:
        return safetensors.torch.load(blob), facts
    except Exception as error:  # whatever safetensors raises of a file that is none of its own
        raise _DamagedError(f"{blob_path.name} is not readable ({error})") from None
