"""What `pip install` of the built wheels puts into a fresh environment: all of it, and it works."""

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from binep.deploy import packed
from binep.deploy.runtime import Runtime
from binep.deploy.stored import StoredCoupling, StoredNetwork

ROOT = Path(__file__).parents[1]
# No network: the environment that runs the tests builds the wheels, and lends what they need.
LOCAL = ("--no-build-isolation", "--no-deps", "--quiet")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("setuptools") is None and not os.environ.get("CI"),
        reason="needs setuptools (extra dev)",
    ),
]


def run(*words: object, cwd: Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=inherited)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, wheel: Path, *lent: Path) -> Path:
    """A fresh environment with a wheel in it; its folder of programs. `lent`: search paths."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    options = ["--no-index", "--no-deps", "--quiet", "--prefix", folder]
    run(sys.executable, "-m", "pip", "install", *options, "--ignore-installed", wheel, cwd=folder)
    (packages / "lent.pth").write_text("\n".join(map(str, lent)) + "\n")
    return folder / "bin"


def numpy_alone(folder: Path) -> Path:
    """A search path that has numpy in it, and nothing else."""
    home = Path(np.__file__).parents[1]
    folder.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (home / name).exists():
            (folder / name).symlink_to(home / name)
    return folder


def test_a_wheel_holds_everything_and_works_in_a_fresh_environment(tmp_path: Path):
    # A copy: setuptools leaves a folder `build` beside the sources, and takes from it again.
    tree = tmp_path / "tree"
    own = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=own)
    files = [path for path in (tree / "src").rglob("*") if path.is_file()]
    sources = {str(path.relative_to(tree / "src")) for path in files}
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "pip", "wheel", *LOCAL, "-w", tmp_path, "./tree", cwd=tmp_path)
    (wheel,) = tmp_path.glob("binep-*.whl")
    packed_files = set(zipfile.ZipFile(wheel).namelist())
    assert sources <= packed_files, sources - packed_files

    site = Path(np.__file__).parents[1]
    bin_folder = environment(tmp_path / "fresh", wheel, site)
    work = tmp_path / "work"
    work.mkdir()
    python, binep = bin_folder / "python", bin_folder / "binep"
    where = run(python, "-c", "import binep; print(binep.__file__)", cwd=work)
    assert str(tmp_path / "fresh") in where
    assert run(binep, "--version", cwd=work)
    small = ["--set", "network.dense=[32]", "--name", "small"]
    run(binep, "train", "digits-1fc-wa", "--epochs", "1", *small, cwd=work)
    (made,) = (work / "runs").iterdir()
    run(binep, "report", made, cwd=work)
    for format in ("packed", "c", "mem", "web"):
        run(binep, "export", made, "--to", work / format, "--format", format, cwd=work)
    assert (work / "web" / "playground.html").stat().st_size > 50_000


def test_the_runtime_runs_a_shipped_network_with_numpy_alone(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("build", ROOT / "release" / "runtime.py")
    building = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(building)
    wheel = building.build(tmp_path, "--no-build-isolation")
    bin_folder = environment(tmp_path / "fresh", wheel, numpy_alone(tmp_path / "numpy"))

    generator = np.random.default_rng(0)
    signs = [generator.choice([-1, 1], shape).astype(np.int8) for shape in ((40, 64), (20, 40))]
    network = StoredNetwork(
        input_shape=(64,),
        couplings=[
            StoredCoupling("dense", *each.shape[::-1], signs=each, scale=np.float32(0.2))
            for each in signs
        ],
        activations="binary",
        threshold=0.5,
        sigma=0.5,
        dynamics="energy",
        updates="simultaneous",
        dt=0.5,
        initial_state=0.0,
        steps=10,
        cost="mse",
        classes=10,
        per_class=2,
        readout="average",
        image_shape=(1, 8, 8),
    )
    packed.save(network, tmp_path / "small.safetensors")
    images = generator.integers(0, 256, (20, 1, 8, 8)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    program = (
        "import sys, numpy, binep\n"
        "net = binep.load('small.safetensors')\n"
        "print(*net.predict(numpy.load('images.npy')))\n"
        "assert not {'torch', 'numba', 'scipy', 'typer'} & set(sys.modules)\n"
        "try: binep.Network\n"
        "except ImportError as error: print(error)\n"
    )
    classes, told = run(bin_folder / "python", "-c", program, cwd=tmp_path).splitlines()
    assert classes.split() == [str(n) for n in Runtime(network).predict(images)]
    assert "pip install binep" in told
