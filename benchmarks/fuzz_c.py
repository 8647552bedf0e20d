"""Fuzz the program that every export in C brings, by libFuzzer under sanitizers of addresses and
undefined behaviour.

    python benchmarks/fuzz_c.py --out fuzz-c.json [--seconds 120]

Three small networks: convolutions of bits that go on learning, a dense one of bits without states,
and one of real activations. What libFuzzer makes up is the file of test vectors, see `fuzz_c.c`;
seeds are good files for each way to call the program. Exit codes other than 0, 1 and 2, a word of
the sanitizers, a minute or 2 GB are findings. Needs clang (apt install clang); lines of
the program that the inputs reach are counted where llvm-cov is there.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from binep.deploy import c_program
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.training import recipe as recipes
from binep.training import runs

HARNESS = Path(__file__).with_suffix(".c")
CALLS = 9  # ways to call the program that the harness knows
# The program takes no memory of its own, and who looks for leaks has to stop processes, which not
# every machine allows.
LIMITS = ["-timeout=60", "-rss_limit_mb=2048", "-max_len=4096", "-close_fd_mask=3"]
LIMITS += ["-detect_leaks=0"]
NETWORKS: dict[str, tuple[str, list[str]]] = {
    "convolutions of bits, learning": (
        "digits-conv-wa",
        ["network.conv=[4, 6]", "network.kernel=3", "network.padding=1", "optimizer.tau=1e-5"],
    ),
    "bits without states": (
        "digits-1fc-wa",
        ["network.dense=[16]", "network.dynamics=hopfield", "network.updates=alternating"],
    ),
    "real activations": ("digits-1fc-w", ["network.dense=[16]"]),
}
SMALL = ["network.per_class=2", "learning.free_steps=6"]


def clang() -> str | None:
    """A clang that has libFuzzer."""
    found = shutil.which("clang")
    if found is None:
        return None
    words = [found, "-fsanitize=fuzzer", "-x", "c", "-", "-o", os.devnull]
    program = "int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }"
    done = subprocess.run(words, input=program.encode(), capture_output=True)
    return found if done.returncode == 0 else None


def write(name: str, folder: Path) -> None:
    """Export a network, and lay seeds out: its own vectors, for each way to call it."""
    recipe_name, overrides = NETWORKS[name]
    recipe = recipes.load(recipe_name, [*overrides, *SMALL])
    network = store(recipe.build_network(torch.Generator().manual_seed(1)), recipe)
    learning = FixedRule(learning_rule(recipe)) if "learning" in name else None
    images = np.random.default_rng(0).integers(0, 256, (3, *network.image_shape), np.uint8)
    c_program.write(network, folder, images, np.array([1, 2, 3]), learning=learning)
    shutil.copy(HARNESS, folder)
    (folder / "corpus").mkdir()
    for call in range(CALLS):
        seed = bytes([call]) + (folder / "vectors.bin").read_bytes()
        (folder / "corpus" / f"seed-{call}").write_bytes(seed)


def build(compiler: str, folder: Path, *words: str, to: str = "fuzz") -> None:
    sources = [path.name for path in sorted(folder.glob("*.c")) if path.name != "main.c"]
    words = ("-std=c11", "-g", "-O1", "-ffp-contract=off", *words, "-o", to)
    subprocess.run([compiler, *words, *sources], cwd=folder, check=True)


def fuzz(compiler: str, folder: Path, *words: str) -> dict[str, Any]:
    """Let libFuzzer try as long as `words` say; a finding ends in an error with its words."""
    build(compiler, folder, "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
    command = ["./fuzz", "-print_final_stats=1", "-seed=1", *LIMITS, *words, "corpus"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace",
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-4000:]}")
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)[-1]
    return {
        "executions": int(stats["number_of_executed_units"]),
        "seconds": int(re.findall(r"in (\d+) second", done.stderr)[-1]),
        "edges": int(last[0]),
        "features": int(last[1]),
        "inputs_kept": int(last[2]),
        "findings": 0,
    }


def reached(compiler: str, folder: Path) -> dict[str, str]:
    """Lines of each source that the inputs kept reach, of those that there are."""
    profile, cover = shutil.which("llvm-profdata"), shutil.which("llvm-cov")
    if profile is None or cover is None:
        return {}
    flags = ["-fsanitize=fuzzer", "-fprofile-instr-generate", "-fcoverage-mapping"]
    build(compiler, folder, *flags, to="cover")
    command = ["./cover", "-runs=0", "-close_fd_mask=3", "corpus"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "LLVM_PROFILE_FILE": "raw"})
    subprocess.run([profile, "merge", "raw", "-o", "data"], cwd=folder, check=True)
    command = [cover, "export", "-summary-only", "./cover", "-instr-profile=data"]
    found = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    lines = {
        Path(each["filename"]).name: each["summary"]["lines"] for each in found["data"][0]["files"]
    }
    return {name: f"{n['covered']} of {n['count']}" for name, n in sorted(lines.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="for each network")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    compiler = clang()
    if compiler is None:
        raise SystemExit("needs clang with libFuzzer: apt install clang")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    found = {
        "compiler": version.splitlines()[0],
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "commit": runs.commit(),
        "networks": {},
    }
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            write(name, Path(folder))
            facts = fuzz(compiler, Path(folder), f"-max_total_time={options.seconds}")
            found["networks"][name] = {**facts, "lines": reached(compiler, Path(folder))}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
