"""What Yosys makes of the exported core, and how long that takes it, core by core.

    python benchmarks/verilog_synthesis.py --limit 600 --out benchmarks/verilog-synthesis.json

Every core of `CORES` is synthesised in a process of its own, which is given up after so many
seconds of processor time. What has been done already stands in the JSON file and is not done again,
as long as no line of the Verilog has changed since.
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, core_memories, modules
from binep.errors import BinepError
from binep.files import write_whole
from binep.hardware.synthesis import synthesize
from binep.training import recipe as recipes

# Momenta: 16 bits for digits, 24 for MNIST.
MOMENTA = {"digits": 16, "mnist": 24}
ENERGY, BITS = "digits-1fc-wa", "digits-1fc-wa-bits"
# Recipe, N, whether it learns, target: the quick ones first.
CORES = [
    *((name, n, learns, "synth_ecp5")
      for n in (8, 16) for name in (ENERGY, BITS) for learns in (False, True)),
    *((name, 8, False, target)
      for target in ("synth_ice40", "synth") for name in (ENERGY, BITS)),
    *((name, 16, learns, "synth_ecp5")
      for name in ("mnist-1fc-wa", "mnist-1fc-wa-bits") for learns in (False, True)),
    *((name, n, learns, "synth_ecp5")
      for n in (32, 64) for name in (ENERGY, BITS) for learns in (False, True)),
    *((name, 64, learns, "synth_ecp5")
      for name in ("mnist-1fc-wa", "mnist-1fc-wa-bits") for learns in (False, True)),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=600, help="seconds of processor time")
    parser.add_argument("--out", type=Path, help="of the JSON file")
    parser.add_argument("--one", help="RECIPE,N,LEARNS,TARGET: print it and do no other")
    arguments = parser.parse_args()
    if arguments.one is not None:
        name, parallel, learns, target = arguments.one.split(",")
        print(json.dumps(one(name, int(parallel), learns == "True", target)))
        return
    done = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, parallel, learns, target in CORES:
        key = f"{name},{parallel},{learns},{target}"
        version = digest(core_of(name, parallel, learns))
        if done.get(key, {}).get("verilog") != version:
            done[key] = {"verilog": version, **apart(key, arguments.limit)}
            write_whole(arguments.out, json.dumps(done, indent=1) + "\n")
        print(key, done[key], flush=True)


def core_of(name: str, parallel: int, learns: bool) -> Core:
    recipe = recipes.load(name)
    network = recipe.build_network(torch.Generator().manual_seed(0))
    bits = MOMENTA[name.partition("-")[0]]
    rule = FixedRule(learning_rule(recipe), bits) if learns else None
    return Core(store(network, recipe), parallel=parallel, learning=rule)


def digest(core: Core) -> str:
    """Of all lines of Verilog."""
    text = "".join(f"{name}\n{text}" for name, text in sorted(modules(core).items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def one(name: str, parallel: int, learns: bool, target: str) -> dict[str, object]:
    core, found = core_of(name, parallel, learns), dict[str, object]()
    try:
        [logic] = synthesize(core, [target])
    except BinepError as error:
        found["error"] = str(error)
    else:
        found |= asdict(logic)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["processor_seconds"] = round(used.ru_utime + used.ru_stime)
    found["memory_gib"] = round(used.ru_maxrss / 2**20, 2)
    found["ram_bits"] = sum(memory.bits for memory in core_memories(core))
    return found


def apart(key: str, limit: int) -> dict[str, object]:
    """One core, in a process of its own."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    command = [sys.executable, __file__, "--one", key]
    said = subprocess.run(
        command, preexec_fn=limited, capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(said)
    if "error" in found and found["processor_seconds"] >= limit - 5:
        found["error"] = f"given up after {limit} s"
    return found


if __name__ == "__main__":
    main()
