"""One training in several processes, as torchrun starts them.

    torchrun --nproc-per-node=2 -m binep train RECIPE

Process 0 leads: it reads checkpoints, writes the run and speaks. The others receive what it read,
train in step with it, and keep quiet. Who does not answer for `PATIENCE` seconds ends the training
with one line that names it; torchrun then ends the processes, or starts them all anew.
"""

import atexit
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from binep.engines.exchange import Exchange
from binep.engines.processes import ALONE, Processes
from binep.errors import BinepError, ProcessLost

# Seconds; another name for it is $BINEP_PATIENCE. torchrun takes up to 30 more to end what hangs.
PATIENCE = 60.0
LONG = timedelta(hours=2)  # to read data, which the leader may have to download
REPORT = 2.0  # seconds in which those who wait say so
READY = b"ready"


def rank() -> int:
    """The number of this process among those that torchrun started; 0 without."""
    return int(os.environ.get("RANK", "0")) if _size() > 1 else 0


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def many() -> bool:
    """Whether torchrun has started several processes."""
    return _size() > 1


def leads() -> bool:
    """Whether this process reads, writes and speaks for all of its training."""
    return rank() == 0


def restarted() -> bool:
    """Whether torchrun has started these processes anew after one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def patience(environment: Mapping[str, str]) -> float:
    """How many seconds processes wait for one another."""
    given = environment.get("BINEP_PATIENCE", str(PATIENCE))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise BinepError(f"BINEP_PATIENCE={given}: allowed is a number of seconds above 0")
    return seconds


@cache
def join() -> "Team":
    """The processes of this training; only this one if nobody started several."""
    if _size() == 1:
        return Team(ALONE)
    seconds = patience(os.environ)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    both = torch.cuda.is_available() and dist.is_nccl_available()
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    store, number, count = next(rendezvous("env://"))
    # torchrun's store outlives the processes: what those before have left there is not ours.
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"binep/{again}/{count}", store)
    calls = Calls(store, number, count, seconds)
    with calls.answering():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if both else "gloo",
            timeout=timedelta(seconds=seconds),
            store=store,
            rank=number,
            world_size=count,
        )
    atexit.register(_leave)
    return Team(Processes(number, count, Exchange(calls.answering)), calls)


def _leave() -> None:
    with suppress(Exception):
        dist.destroy_process_group()


class Calls:
    """What processes tell each other outside of the mini-batches, by a store that all can reach."""

    def __init__(self, store: Any, rank: int, count: int, patience: float) -> None:
        self.store, self.rank, self.count, self.patience = store, rank, count, patience
        self.trainings = 0

    def tell(self, what: str, word: bytes) -> None:
        self.store.set(f"{what}/{self.trainings}", word)

    def wait_for(self, what: str) -> bytes:
        """What the leader tells."""
        key = f"{what}/{self.trainings}"
        try:
            self.store.wait([key], LONG)
        except RuntimeError:
            raise ProcessLost(f"process 0 has not told of its {what} for {LONG}") from None
        return self.store.get(key)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A context for waiting on the others: if it fails, says who has not answered."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, ProcessLost):
                raise
            self._fail(time.monotonic() - began, error)

    def _fail(self, waited: float, error: Exception) -> NoReturn:
        """Those that notice report it; the one that does not is missing."""
        missing: list[int] = []
        with suppress(Exception):
            self.store.set(f"noticed/{self.rank}", b"1")
            time.sleep(min(REPORT, self.patience))
            missing = [n for n in range(self.count) if not self.store.check([f"noticed/{n}"])]
        who = " and ".join(f"process {n}" for n in missing) or "a process"
        what = (
            f"not answered for {waited:.0f} s: it hangs"
            if waited >= 0.9 * self.patience
            else "ended"
        )
        raise ProcessLost(
            f"{who} of {self.count} has {what}; the training goes on from its last checkpoint when "
            f"it is started again ({str(error).splitlines()[0][:120]})"
        ) from None


class Team:
    """The processes of a training, and how it begins and ends in all of them.

    Attributes:
        processes: as engines know them.
    """

    def __init__(self, processes: Processes, calls: Calls | None = None) -> None:
        self.processes, self.calls = processes, calls

    @property
    def leads(self) -> bool:
        return self.processes.leads

    @property
    def many(self) -> bool:
        return self.calls is not None

    @property
    def exchanged(self) -> dict[str, Any]:
        """What a record says of the bytes that have travelled; nothing in one process."""
        if self.processes.exchange is None:
            return {}
        traffic = self.processes.exchange.traffic
        return {
            "exchanged": {
                "steps": traffic.steps,
                "bytes_per_step": round(traffic.bytes_per_step),
                "received": traffic.received,
                "tensors": traffic.tensors,
            }
        }

    # --- the beginning: the leader says when the data are there, and where it begins

    @contextmanager
    def leading(self) -> Iterator[None]:
        """A context for what only the leader does: if it fails, the others end too."""
        if self.calls is None:
            yield
            return
        self.calls.trainings += 1
        try:
            yield
        except BaseException as error:
            word = f"process 0 failed: {error}".encode()
            self.calls.tell("data", word)
            self.calls.tell("start", word)
            raise

    def say_data_are_there(self) -> None:
        if self.calls is not None:
            self.calls.tell("data", READY)

    def say_start(self) -> None:
        if self.calls is not None:
            self.calls.tell("start", READY)

    def wait_for_data(self) -> None:
        """What a process that does not lead waits for first."""
        assert self.calls is not None
        self.calls.trainings += 1
        self._wait("data")

    def wait_for_start(self) -> None:
        self._wait("start")

    def _wait(self, what: str) -> None:
        assert self.calls is not None
        word = self.calls.wait_for(what)
        if word != READY:
            raise BinepError(word.decode(errors="replace"))

    # --- what the leader knows

    def share_checkpoint(
        self, found: tuple[dict[str, Tensor], dict[str, Any]] | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The checkpoint that the leader read, in all processes."""
        if self.calls is None:
            return found
        blob = b"" if found is None else safetensors.torch.save(found[0])
        facts = self.share_facts(None if found is None else found[1])
        blob = self._broadcast(blob)
        return None if facts is None else (safetensors.torch.load(blob), facts)

    def share_facts(self, facts: Any) -> Any:
        """What JSON holds, as the leader has it, in all processes."""
        if self.calls is None:
            return facts
        return json.loads(self._broadcast(json.dumps(facts).encode()))

    def _broadcast(self, blob: bytes) -> bytes:
        assert self.calls is not None
        size = torch.tensor([len(blob)])
        with self.calls.answering():
            dist.broadcast(size, 0)
            data = torch.empty(int(size), dtype=torch.uint8)
            if self.leads and len(blob):
                data.copy_(torch.frombuffer(bytearray(blob), dtype=torch.uint8))
            dist.broadcast(data, 0)
        return data.numpy().tobytes()
