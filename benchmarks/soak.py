"""Train for two hours with a checkpoint each second, and see that nothing piles up.

    python benchmarks/soak.py --out soak [--minutes 120] [-- RECIPE --set KEY=VALUE ...]

Every ten seconds: resident memory and open files of the training process (Linux tells them in
/proc), bytes and files in the run's folder. At the end the run is asked to stop and resumed until
it has written another checkpoint. Growth is the slope of a straight line through the second half,
when caches are warm. Writes OUT.json and OUT.png, and OUT.json every two minutes on the way.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from binep.training import runs

EVERY = 10.0  # seconds
TELL = 12  # rows
USUAL = ["digits-conv-wa", "--engine", "reference", "--set", "training.batch_size=4"]

Row = dict[str, float]


def measure(process: int, folder: Path) -> Row:
    """Memory in MB and open files of a process; files, bytes and epochs of its run."""
    status = Path(f"/proc/{process}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    sizes = [path.stat().st_size for path in folder.glob("*/checkpoint-*") if path.exists()]
    metrics = [path.read_bytes() for path in folder.glob("*/metrics.jsonl")]
    return {
        "memory_mb": int(resident.split()[1]) / 1024,
        "handles": len(os.listdir(f"/proc/{process}/fd")),  # noqa: PTH208
        "threads": int(status.partition("Threads:")[2].split()[0]),
        "files": sum(1 for path in folder.rglob("*") if path.is_file()),
        "checkpoint_bytes": sum(sizes),
        "metrics_bytes": sum(map(len, metrics)),
        "epochs": sum(text.count(b"\n") for text in metrics),
    }


def written(folder: Path) -> set[Path]:
    """The checkpoints that are there; each has a name of its own."""
    return set(folder.glob("*/checkpoint-*.json"))


def soak(
    words: list[str],
    folder: Path,
    seconds: float,
    tell: Callable[[list[Row]], None] = lambda rows: None,
) -> tuple[list[Row], int]:
    """The rows measured while training goes on, told on the way; the exit code after SIGTERM."""
    before = written(folder)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    rows: list[Row] = []
    began = time.monotonic()
    try:
        while time.monotonic() - began < seconds or written(folder) <= before:
            time.sleep(EVERY)
            if process.poll() is not None:
                raise SystemExit(f"training ended by itself, exit code {process.returncode}")
            rows.append({"seconds": time.monotonic() - began, **measure(process.pid, folder)})
            if len(rows) % TELL == 0:
                tell(rows)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(300)
    return rows, code


def growth(rows: list[Row], key: str) -> float:
    """Per hour, over the second half."""
    late = rows[len(rows) // 2 :]
    times = [row["seconds"] / 3600 for row in late]
    return statistics.linear_regression(times, [row[key] for row in late]).slope


def summary(rows: list[Row]) -> dict[str, Any]:
    late = rows[len(rows) // 2 :]
    return {
        "minutes": round(rows[-1]["seconds"] / 60, 1),
        "epochs": rows[-1]["epochs"],
        "memory_mb": {"first": rows[0]["memory_mb"], "last": rows[-1]["memory_mb"]},
        "memory_mb_per_hour": round(growth(rows, "memory_mb"), 2),
        "handles": sorted({row["handles"] for row in late}),
        "threads": sorted({row["threads"] for row in late}),
        "most_files": max(row["files"] for row in rows),
        "most_checkpoint_bytes": max(row["checkpoint_bytes"] for row in rows),
    }


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, key, label in zip(
        axes,
        ("memory_mb", "handles", "checkpoint_bytes"),
        ("resident memory, MB", "open files", "checkpoints, bytes"),
        strict=True,
    ):
        axis.plot([row["seconds"] / 60 for row in rows], [row[key] for row in rows])
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("words", nargs="*", default=USUAL)
    options = parser.parse_args()
    about = {
        "command": ["binep", "train", *options.words],
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "commit": runs.commit(),
    }

    def tell(rows: list[Row], **end: Any) -> None:
        found = {**about, **summary(rows), **end}
        print(json.dumps(found, indent=1), flush=True)
        found["rows"] = [  # one a minute of those that were measured
            {key: round(value, 2) for key, value in row.items()}
            for row in rows[:: round(60 / EVERY)]
        ]
        options.out.with_suffix(".json").write_text(json.dumps(found) + "\n")

    with tempfile.TemporaryDirectory() as name:
        train = [sys.executable, "-m", "binep", "train", *options.words, "--out", name]
        train += ["--checkpoint-every", "1", "--epochs", "1000000", "--continue"]
        rows, code = soak(train, Path(name), 60 * options.minutes, tell)
        again, code_again = soak(train, Path(name), 2 * EVERY)
    tell(rows, exit_codes=[code, code_again], resumed_at_epoch=again[0]["epochs"])
    draw(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
