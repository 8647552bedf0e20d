"""The queue of long trainings for a GPU that is there for minutes at a time: no epoch twice.

    python benchmarks/gpu_queue.py                               what is next, how long it takes
    python benchmarks/gpu_queue.py pack --seconds N --to FOLDER
    PYTHONPATH=FOLDER/src python FOLDER/gpu_queue.py train FOLDER --seconds N     where the GPU is
    python benchmarks/gpu_queue.py keep PART...

The list is `gpu_queue.toml`. `pack` fills FOLDER, which then travels, with the committed source and
the checkpoints of what fits N seconds. `train` goes on with it, stops before N seconds are over and
leaves checkpoints in $OUT, in parts that can be sent. `keep` takes them into ~/binep-queue
($BINEP_QUEUE) and writes what is finished to evidence/. Data are looked for in $BINEP_DATA.
"""

import argparse
import gzip
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import threading
import time
import tomllib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import check_output
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.training import checkpoints, run_folder, runs, seals
from binep.training import recipe as recipes
from binep.training.progress import PlainWatcher
from binep.training.recipe import Recipe
from binep.training.trainer import Trainer

HERE = Path(__file__).resolve().parent
PART = 15 * 2**20  # bytes of a file that is sent
SAVING = 20.0  # seconds for imports before, checkpoints and parts after
LIST = "trainings.json"


@dataclass(frozen=True)
class Training:
    """A recipe, perhaps changed, with one seed; `seconds` an epoch where `beside` run at once."""

    recipe: str
    seed: int
    epochs: int
    seconds: float
    claim: str
    beside: int = 1
    set: Sequence[str] = ()

    def load(self) -> Recipe:
        return recipes.load(self.recipe, [*self.set, f"training.epochs={self.epochs}"])

    @property
    def name(self) -> str:
        """Where it is kept: `<recipe and changes>/<recipe>-seed<k>`."""
        changed = re.sub(r"[^\w.,=+-]", "", "+".join([self.recipe, *self.set]))
        return f"{changed}/{runs.run_name(self.load(), self.seed)}"

    def kept(self, home: Path) -> int:
        """Epochs that can be gone on from."""
        return len(run_folder.read_metrics(home / self.name))

    def published(self, evidence: Path) -> int:
        """Epochs in evidence/, whether or not there is a checkpoint to go on from."""
        # Not at the top: the machine with the GPU may lack its libraries.
        from binep.studies.evidence import read_result, result_path

        path = evidence / result_path(self.load(), self.seed)
        return len(read_result(path).metrics) if path.exists() else 0

    def left(self, home: Path, evidence: Path) -> float:
        """Seconds until its last epoch."""
        done = self.epochs if self.published(evidence) >= self.epochs else self.kept(home)
        return max(0, self.epochs - done) * self.seconds


def read_list(path: Path) -> list[Training]:
    rows = tomllib.loads(path.read_text("utf-8"))["training"]
    return [Training(seed=seed, **row) for row in rows for seed in row.pop("seeds")]


def next_trainings(
    every: Sequence[Training], home: Path, evidence: Path, seconds: float
) -> list[Training]:
    """The first that are not finished, until they fill the seconds."""
    found: list[Training] = []
    for each in every:
        if seconds > 0 and (left := each.left(home, evidence)):
            found.append(each)
            seconds -= left
    return found


def tell(every: Sequence[Training], home: Path, evidence: Path) -> str:
    """A line a training: epochs asked for, in evidence/ and kept, and the time that is left."""
    width = max(len(each.name) for each in every)
    lines = [f"{'':{width}}  epochs  published  kept  minutes left"]
    for each in every:
        counts = f"{each.epochs:6}  {each.published(evidence):9}  {each.kept(home):4}"
        minutes = each.left(home, evidence) / 60
        lines.append(f"{each.name:{width}}  {counts}  {minutes:12.0f}  {each.claim}")
    names = [each.name for each in next_trainings(every, home, evidence, 1)] or ["nothing"]
    hours = sum(each.left(home, evidence) for each in every) / 3600
    return "\n".join([*lines, f"next: {names[0]}; all: {hours:.1f} h"])


# --- on the way ---------------------------------------------------------------------------------


def pack(trainings: Sequence[Training], home: Path, to: Path, commit: str | None) -> list[Path]:
    """Write the list and the newest checkpoint of each into files `part<k>of<n>` in a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
        facts = {"commit": commit, "trainings": [asdict(each) for each in trainings]}
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(LIST)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        for each in trainings:
            for newest in sorted((home / each.name).glob("checkpoint-*.json"))[-1:]:
                names = ("recipe.toml", "record.json", "metrics.jsonl", newest.name)
                for name in (*names, newest.with_suffix(".safetensors").name):
                    tar.add(newest.with_name(name), f"{each.name}/{name}")
    blob = stream.getvalue()
    pieces = [blob[start : start + PART] for start in range(0, len(blob), PART)]
    make_folder(to)
    for old in to.glob("part*of*"):
        old.unlink()
    paths = [to / f"part{n}of{len(pieces)}" for n in range(1, len(pieces) + 1)]
    for path, piece in zip(paths, pieces, strict=True):
        write_whole(path, piece)
    return paths


def keep(
    files: Iterable[Path], home: Path, evidence: Path | None = None
) -> tuple[list[Training], str | None]:
    """Take over what `pack` wrote and has got further than what is there; returns its list."""
    paths = sorted(files, key=lambda path: (len(path.name), path.name))
    if not paths or [path.name for path in paths] != [
        f"part{n}of{len(paths)}" for n in range(1, len(paths) + 1)
    ]:
        raise BinepError(f"{[path.name for path in paths]}: allowed are all parts of one `pack`")
    make_folder(home)
    with tempfile.TemporaryDirectory(dir=home) as place:
        try:
            blob = gzip.decompress(b"".join(path.read_bytes() for path in paths))
            with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
                tar.extractall(place, filter="data")
        except (zlib.error, EOFError, OSError) as error:
            raise BinepError(f"{paths[0].parent}: a part is damaged ({error})") from None
        facts = json.loads((Path(place) / LIST).read_text("utf-8"))
        trainings = [Training(**each) for each in facts["trainings"]]
        for each in trainings:
            came, here = Path(place) / each.name, home / each.name
            if _standing(came) > _standing(here):
                checkpoints.load(came, warn=print)
                _fill_in_commit(came, facts["commit"])
                make_folder(here.parent)
                shutil.rmtree(here, ignore_errors=True)
                came.rename(here)
            if evidence is not None and here.exists() and (run := runs.open_run(here)).finished:
                from binep.studies.evidence import Evidence, write_index, write_result

                print(write_result(run, evidence))
                write_index(Evidence(evidence))
    return trainings, facts["commit"]


def _standing(folder: Path) -> str:
    """Which epoch and sample the newest checkpoint is of, in an order that sorts."""
    return max((path.stem for path in folder.glob("checkpoint-*.json")), default="")


def _fill_in_commit(folder: Path, commit: str | None) -> None:
    """A machine without a repository cannot tell what it trained; `pack` can, and it is marked."""
    record = runs.open_run(folder).record
    if record["commit"] is None and commit is not None:
        filled = seals.sealed({**record, "commit": commit, "commit_filled_in": True})
        write_whole(folder / "record.json", filled)


# --- on the machine -----------------------------------------------------------------------------


class Until(PlainWatcher):
    """Ends a training, after a mini-batch, when the time is up."""

    def __init__(self, label: str, over: Callable[[], bool], stop: threading.Event) -> None:
        super().__init__(label)
        self.over, self.stop = over, stop

    def batch(self, trainer: Trainer) -> None:
        if self.over():
            self.stop.set()


def train(
    trainings: Sequence[Training], home: Path, over: Callable[[], bool], **options: Any
) -> None:
    """Train them in this order, those of a recipe side by side, until the time is over."""

    def job(each: Training, stop: threading.Event) -> runs.Run:
        watcher = Until(f"{each.recipe} seed {each.seed}  ", over, stop)
        place = {"out": (home / each.name).parent, "resume": True, "stop": stop}
        return runs.train(each.load(), seed=each.seed, watcher=watcher, **place, **options)

    left = list(trainings)
    while left and not over():
        group = [each for each in left if each.load() == left[0].load()][: left[0].beside]
        left = [each for each in left if each not in group]
        found = list(runs.side_by_side([partial(job, each) for each in group], len(group)))
        if not all(run.finished for run in found):
            return


def main() -> None:
    began, usual = time.monotonic(), argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=usual)
    commands = parser.add_subparsers(dest="command")
    packing, training, keeping = (commands.add_parser(name) for name in ("pack", "train", "keep"))
    packing.add_argument("--seconds", type=float, required=True)
    packing.add_argument("--to", type=Path, required=True)
    training.add_argument("folder", type=Path)
    training.add_argument("--seconds", type=float, required=True)
    training.add_argument("--device", default="auto")
    training.add_argument("--engine", default="auto")
    keeping.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    home = Path(os.environ.get("BINEP_QUEUE", "~/binep-queue")).expanduser()
    if options.command == "train":
        work, commit = keep(options.folder.glob("part*of*"), home)
        end = began + options.seconds - SAVING
        where = {"device": options.device, "engine": options.engine, "offline": True}
        try:
            train(work, home, lambda: time.monotonic() > end, **where)
        finally:
            pack(work, home, Path(os.environ.get("OUT") or options.folder / "out"), commit)
        return
    every, evidence = read_list(HERE / "gpu_queue.toml"), HERE.parent / "evidence"
    if options.command == "pack":
        git = ["git", "-C", str(HERE.parent)]
        commit = check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        pack(next_trainings(every, home, evidence, options.seconds), home, options.to, commit)
        shutil.rmtree(options.to / "src", ignore_errors=True)
        with tarfile.open(
            fileobj=io.BytesIO(check_output([*git, "archive", commit, "src"]))
        ) as tar:
            tar.extractall(options.to, filter="data")
        shutil.copy(__file__, options.to)
        return
    if options.command == "keep":
        keep(options.files, home, evidence)
    print(tell(every, home, evidence))


if __name__ == "__main__":
    main()
