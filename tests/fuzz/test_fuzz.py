"""Whatever is handed to binep is taken, or refused in one line: nothing else, and never for ever.

A short run with all other tests. The long one, with its record:

    BINEP_FUZZ=10000 BINEP_FUZZ_RECORD=benchmarks/fuzz.json pytest tests/fuzz -n 0
"""

import io
import json
import os
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import PLAIN, TEXTS, altered, damaged, places

from binep.data import load, own
from binep.deploy import c_program, packed, web_page
from binep.deploy.export import store
from binep.deploy.runtime import Runtime
from binep.errors import BinepError
from binep.studies import evidence
from binep.training import checkpoints, runs
from binep.training import recipe as recipes
from binep.training.progress import Watcher
from binep.training.seals import sealed
from conftest import small_recipe
from forging import forged, parts_of

EXAMPLES = int(os.environ.get("BINEP_FUZZ", "40"))
RECORD = os.environ.get("BINEP_FUZZ_RECORD")
LONGEST = 20.0  # seconds of processor time for one input

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES < 1000,
    suppress_health_check=list(HealthCheck),
)
outcomes: dict[str, Counter[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Iterator[None]:
    """Writes down how many inputs of each kind were taken, and how many refused."""
    began = time.monotonic()
    yield
    if RECORD:
        where = {"commit": runs.commit()}
        counts = {kind: dict(sorted(each.items())) | where for kind, each in outcomes.items()}
        path = Path(RECORD)
        before = json.loads(path.read_text()) if path.exists() else {}  # of other kinds
        seconds = round(before.get("seconds", 0) + time.monotonic() - began)
        inputs = dict(sorted({**before.get("inputs", {}), **counts}.items()))
        facts = {"inputs": inputs, "seconds": seconds}
        path.write_text(json.dumps(facts, indent=1) + "\n")


def handed(kind: str, call: Callable[[], Any]) -> None:
    """Let something be done with an input, and count what came of it; anything unforeseen fails."""
    began = time.process_time()
    try:
        call()
        outcome = "taken"
    except BinepError as error:
        assert str(error) and "\n" not in str(error)
        outcome = "refused"
    assert time.process_time() - began < LONGEST
    outcomes.setdefault(kind, Counter())[outcome] += 1


# --- recipes --------------------------------------------------------------------------------------

TABLES = [
    tomllib.loads(recipes.dumps(recipes.load(name)))
    for name in ("digits-1fc-w", "digits-conv-wa", "mnist-2fc-w-bptt")
]


@fuzzed
@given(table=st.sampled_from(TABLES).flatmap(altered))
def test_recipes(table: Any):
    handed("recipes", lambda: recipes.dumps(recipes.from_table(table)))


@fuzzed
@given(
    content=st.sampled_from([recipes.dumps(recipes.load("digits-1fc-w")).encode()]).flatmap(damaged)
)
def test_files_of_recipes(content: bytes, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(content)
    handed("files of recipes", lambda: recipes.load(path))


KEYS = [".".join(place) for place in places(TABLES[1]) if all(type(p) is str for p in place)]


@fuzzed
@given(
    key=st.one_of(st.sampled_from(KEYS), TEXTS),
    value=st.one_of(PLAIN.map(str), TEXTS, st.lists(PLAIN, max_size=3).map(str)),
)
def test_overrides(key: str, value: str):
    handed("overrides", lambda: recipes.load("digits-1fc-w", [f"{key}={value}"]))


# --- data -----------------------------------------------------------------------------------------


def _npz() -> bytes:
    stream = io.BytesIO()
    images = np.arange(600, dtype=np.uint8).reshape(10, 60)
    np.savez(stream, images=images, labels=np.arange(10) % 2)
    return stream.getvalue()


def _idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


CSV = "a,b,label\n" + "".join(f"{n % 7},{n / 3},{'xy'[n % 2]}\n" for n in range(12))
IMAGES, LABELS = np.arange(160).reshape(10, 4, 4) % 256, np.arange(10) % 2


@fuzzed
@given(st.data())
def test_data_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    kind = data.draw(st.sampled_from(["npz", "csv", "idx", "npy"]))
    folder = tmp_path_factory.getbasetemp() / "fuzzed-data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / f"own.{kind}"
    if kind == "idx":
        path = folder
        (folder / "train-images-idx3-ubyte").write_bytes(data.draw(damaged(_idx(IMAGES))))
        (folder / "train-labels-idx1-ubyte").write_bytes(_idx(LABELS))
    elif kind == "npy":
        stream = io.BytesIO()
        np.save(stream, IMAGES.astype(np.float32))
        path.write_bytes(data.draw(damaged(stream.getvalue())))
        np.save(folder / "own-labels.npy", LABELS)
    else:
        path.write_bytes(data.draw(damaged(_npz() if kind == "npz" else CSV.encode())))
    handed("data files", lambda: own.fingerprint(own.read(path)))


# --- checkpoints ----------------------------------------------------------------------------------

TRAINED, DIGITS = small_recipe("digits-1fc-w", "training.epochs=1"), load("digits")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    class Once(Watcher):
        def batch(self, trainer: Any) -> None:
            trainer.settle()
            checkpoints.save(tmp_path_factory.getbasetemp(), trainer)

    return runs.train(TRAINED, out=tmp_path_factory.mktemp("trained"), watcher=Once())


@fuzzed
@given(st.data())
def test_checkpoints(trained: runs.Run, tmp_path_factory: pytest.TempPathFactory, data: Any):
    """Facts and tensors of any kind, all seals good: refused, or a trainer that goes on."""
    found = checkpoints.load(tmp_path_factory.getbasetemp(), warn=print)
    assert found is not None
    tensors, facts = found
    if data.draw(st.booleans()):
        facts = data.draw(altered(facts))
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[name]
        change = data.draw(
            st.sampled_from(["remove", "double", "empty", "type", "shape", "value", "rename"])
        )
        tensors = dict(tensors)
        del tensors[name]
        if change == "double":
            tensors[name] = torch.cat([tensor.reshape(-1), tensor.reshape(-1)])
        elif change == "empty":
            tensors[name] = tensor.reshape(-1)[:0]
        elif change == "type":
            kinds = [torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16]
            tensors[name] = tensor.to(data.draw(st.sampled_from(kinds)))
        elif change == "shape":
            tensors[name] = tensor.reshape(-1, 1) if tensor.dim() == 1 else tensor.T.contiguous()
        elif change == "value" and tensor.numel():
            numbers = tensor.clone().reshape(-1)
            at = data.draw(st.integers(0, len(numbers) - 1))
            worst = [float("nan"), float("inf"), -1e38, 0.0]
            numbers[at] = data.draw(
                st.sampled_from(worst if numbers.is_floating_point() else [0, 1, 255])
            )
            tensors[name] = numbers.reshape(tensor.shape)
        elif change == "rename":
            tensors[name + "x"] = tensor
    trainer = runs.build_trainer(TRAINED, DIGITS, 0, torch.device("cpu"), "delta")

    def go_on() -> None:
        checkpoints.restore(trainer, tensors, facts)
        trainer.epoch(lambda: False)

    handed("checkpoints", go_on)


@fuzzed
@given(st.data())
def test_files_of_a_run(trained: runs.Run, tmp_path_factory: pytest.TempPathFactory, data: Any):
    """One file of a run with any content, sealed again where that can be."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed-run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(trained.folder, folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = path.read_bytes()
    if path.suffix == ".json" and data.draw(st.booleans()):
        table = {k: v for k, v in json.loads(content).items() if k != "seal"}
        path.write_text(sealed(data.draw(altered(table, PLAIN.filter(_is_json)))))
    else:
        path.write_bytes(data.draw(damaged(content)))
    handed("files of a run", lambda: runs.open_run(folder).network("cpu"))


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except ValueError:
        return False


# --- packed files, evidence -----------------------------------------------------------------------


def _packed(name: str) -> bytes:
    recipe = small_recipe(name)
    return packed.dumps(store(recipe.build_network(torch.Generator().manual_seed(1)), recipe))


PACKED = [parts_of(_packed(name)) for name in ("digits-conv-wa", "digits-1fc-w")]


@fuzzed
@given(st.data())
def test_packed_files(data: st.DataObject):
    network, header, values = data.draw(st.sampled_from(PACKED))
    what = data.draw(st.sampled_from(["network", "header", "values"]))
    if what == "network":
        network = data.draw(altered(network, PLAIN.filter(_is_json)))
    elif what == "header":
        table = {k: v for k, v in header.items() if k != "__metadata__"}
        header = {
            "__metadata__": header["__metadata__"],
            **data.draw(altered(table, PLAIN.filter(_is_json))),
        }
    else:
        values = data.draw(damaged(values))
    content = forged(network, header, values)

    def read() -> None:
        runtime = Runtime(packed.loads(content))
        runtime.predict(np.zeros((1, *runtime.network.image_shape), np.uint8))

    handed("packed files", read)


@fuzzed
@given(st.data())
def test_evidence_files(trained: runs.Run, tmp_path_factory: pytest.TempPathFactory, data: Any):
    path = _evidence(trained, tmp_path_factory.getbasetemp() / "evidence")
    good = path.read_text() if not _kept else _kept[0]
    _kept[:] = [good]
    if data.draw(st.booleans()):
        path.write_text(json.dumps(data.draw(altered(json.loads(good), PLAIN.filter(_is_json)))))
    else:
        path.write_bytes(data.draw(damaged(good.encode())))
    handed("evidence files", lambda: evidence.read_result(path))


_kept: list[str] = []


def _evidence(run: runs.Run, folder: Path) -> Path:
    found = sorted(folder.rglob("seed0.json"))
    return found[0] if found else evidence.write_result(run, folder)


# --- pages and C ----------------------------------------------------------------------------------


@fuzzed
@given(
    names=st.lists(TEXTS, min_size=1, max_size=3),
    origin=st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers()), max_size=3),
)
def test_texts_on_a_page(names: list[str], origin: dict[str, Any]):
    """They come out of the page as they went in, and none is markup."""
    facts = {"classes": names, "origin": origin}
    contents = {
        "facts": web_page.as_script(facts),
        **{name: name[:2] * 8 for name in ("wasm", "network", "images")},
    }
    page = web_page.fill(contents)
    found = web_page.contents_of(page)
    assert found == contents and json.loads(found["facts"]) == facts
    assert page.count("<script") == _SCRIPTS
    outcomes.setdefault("texts on a page", Counter())["taken"] += 1


_SCRIPTS = web_page.fill(dict.fromkeys(("facts", "wasm", "network", "images"), "")).count("<script")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported C program under the address and undefined-behaviour sanitizers."""
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("c")
    network = packed.loads(_packed("digits-conv-wa"))
    images = np.random.default_rng(0).integers(0, 256, (3, *network.image_shape), np.uint8)
    c_program.write(network, folder, images, np.array([1, 2, 3]))
    words = [compiler, "-std=c99", "-O1", "-fsanitize=address,undefined"]
    words += ["-fno-sanitize-recover=all", "-ffp-contract=off", "-o", "binep"]
    subprocess.run([*words, *sorted(p.name for p in folder.glob("*.c"))], cwd=folder, check=True)
    return folder / "binep"


@fuzzed
@given(st.data())
def test_c_inputs(program: Path, data: st.DataObject):
    """Exit code 0, 1 (others than expected) or 2 (refused), and no word of the sanitizers."""
    content = data.draw(damaged((program.parent / "vectors.bin").read_bytes()))
    words = data.draw(
        st.sampled_from([[], ["states"], ["time", "1"], ["time", "x"], ["learn", "out"], ["odd"]])
    )
    path = program.parent / "fuzzed.bin"
    path.write_bytes(content)
    done = subprocess.run([program, path, *words], capture_output=True, timeout=LONGEST)
    assert done.returncode in (0, 1, 2) and b"Sanitizer" not in done.stderr, done.stderr
    assert (done.returncode == 2) == bool(done.stderr)
    outcomes.setdefault("C inputs", Counter())["refused" if done.stderr else "taken"] += 1
