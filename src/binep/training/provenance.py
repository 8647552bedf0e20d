"""Where numbers come from: versions, commit, device, engine."""

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import binep
from binep.engines.base import Engine, RunsKernels


def whereabouts(device: torch.device, engine: Engine) -> dict[str, Any]:
    """Where epochs are trained, and by what, as it is now: `threads` are torch's."""
    kernels = isinstance(engine, RunsKernels)
    return {
        **environment(device),
        **({"kernel_threads": engine.kernel_threads} if kernels else {}),
        "engine": engine.name,
        "precision": engine.precision,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Where numbers come from: versions, commit, device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "binep": binep.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
    }


@cache
def commit() -> str | None:
    """The commit of the source that runs, if it runs from a checkout; `+` marks local changes."""
    here = Path(binep.__file__).resolve().parent
    if here.parent.name != "src":
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
