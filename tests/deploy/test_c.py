"""The exported C: it compiles without a warning, runs clean, and computes what Python does."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_fixed import rule
from test_runtime import BINARY, REAL, build, images

from binep.deploy import c_program, layout
from binep.deploy.export import store
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner, FixedRule, learnt
from binep.deploy.runtime import Runtime
from binep.errors import BinepError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

STRICT = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compile_in(folder: Path, *options: str) -> Path:
    sources = sorted(path.name for path in folder.glob("*.c"))
    command = [*STRICT, *(options or SANITIZED), "-o", "binep", *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder / "binep"


def run(program: Path, *words: str) -> str:
    command = [str(program), "vectors.bin", *words]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stdout[-200:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def learning_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    exported(BINARY["dense"], folder, 4, learning=FixedRule(rule()))
    return compile_in(folder, "-O1")


def exported(case: tuple, folder: Path, count: int = 12, **options):
    recipe, network = build(*case)
    stored, x = store(network, recipe), images(recipe, count).numpy()
    labels = np.random.default_rng(0).integers(0, 10, count)
    c_program.write(stored, folder, x, labels, **options)
    return stored, x, labels


@pytest.mark.parametrize(
    "case", ["dense", "pooled conv", "two conv", "wide padding", "bits", "bits, conv"]
)
def test_integer_states_are_pythons_at_every_step(case: str, tmp_path: Path):
    stored, x, _ = exported(BINARY[case], tmp_path, 3)
    lines = run(compile_in(tmp_path), "states").splitlines()
    steps = stored.steps + 1
    assert len(lines) == 3 * steps
    found = np.array([[int(word, 16) for word in line.split()[2:]] for line in lines])
    whole = FixedNetwork(stored)
    for t, state in enumerate(whole.trace(x)):
        # Of bits alone there is nothing else to print.
        seen = [whole.activity(s) for s in state] if stored.bits else state
        expected = np.concatenate([layout.neurons(layer) for layer in seen], axis=1)
        assert np.array_equal(found[t::steps], expected), t


@pytest.mark.parametrize(
    "case", ["dense, narrow window", "dense, other dt and threshold", "bits, other threshold"]
)
def test_binary_states_in_float32_are_those_of_the_runtime(case: str, tmp_path: Path):
    stored, x, _ = exported(BINARY[case], tmp_path, 3)
    lines = run(compile_in(tmp_path), "states").splitlines()
    last = [line.split()[2:] for line in lines[stored.steps :: stored.steps + 1]]
    found = np.array([[float.fromhex(word) for word in line] for line in last], np.float32)
    expected = [layout.neurons(layer) for layer in Runtime(stored).relax(x)]
    assert np.array_equal(found, np.concatenate(expected, axis=1))


EVERY = [*(BINARY[name] for name in BINARY), *(REAL[name] for name in REAL)]
NORMALISED = ("cifar10-conv-w", ["network.conv=[3]", "network.pool=8", "learning.free_steps=3"])


@pytest.mark.parametrize("case", [*EVERY, NORMALISED], ids=lambda case: " ".join(case[1])[:40])
def test_predictions_are_pythons_and_nothing_is_amiss(case: tuple, tmp_path: Path):
    stored, x, _ = exported(case, tmp_path)
    # The other tests run most of the same code under the sanitizers, which take long to compile.
    options = SANITIZED if case in (REAL["conv"], REAL["cross-entropy"], NORMALISED) else ["-O1"]
    last = run(compile_in(tmp_path, *options)).splitlines()
    assert last[-1] == "12 vectors, 0 differ"
    predicted = [int(line.split()[1]) for line in last[:-1]]
    assert np.array_equal(predicted, Runtime(stored).predict(x))


def test_a_tabulated_popcount_and_single_readout(tmp_path: Path):
    recipe, network = build(*BINARY["two conv"])
    stored, x = store(network, recipe, "single"), images(recipe, 30).numpy()
    c_program.write(stored, tmp_path, x, np.zeros(30, int))
    output = run(compile_in(tmp_path, "-O2", "-DBINEP_POPCOUNT_TABLE")).splitlines()
    predicted = [int(line.split()[1]) for line in output[:-1]]
    assert np.array_equal(predicted, Runtime(stored).predict(x, "single"))


@pytest.mark.parametrize(
    ("case", "changes", "bits"),
    [
        ("dense", {}, 16),
        ("dense", {"sign": "centered", "nudge": "constant"}, 7),
        ("dense", {"sign": "positive", "beta": -1.5, "gamma": 0.5}, 31),
        ("conv", {"nudge": "constant"}, 16),
        ("two conv", {"gamma": 0.3}, 12),
        ("bits", {"sign": "positive", "beta": 0.6}, 16),
        ("bits", {"sign": "centered", "gamma": 0.5}, 12),
        ("bits, conv", {"beta": 1.5, "margin": 0.1}, 16),
        ("dense", {"margin": 0.2, "nudge": "constant"}, 16),
        ("bits", {"sign": "centered", "margin": 0.1}, 16),
    ],
)
def test_a_hundred_images_teach_c_what_they_teach_python(
    case: str, changes: dict, bits: int, tmp_path: Path
):
    layers = len(build(*BINARY[case])[1].couplings)
    tau = 0.1 * changes.get("gamma", 1e-2)
    learning = FixedRule(rule(layers, tau=tau, **changes), bits)
    stored, x, labels = exported(BINARY[case], tmp_path, 100, learning=learning)
    options = SANITIZED if case == "two conv" or changes.get("sign") == "centered" else ["-O1"]
    run(compile_in(tmp_path, *options), "learn", "learnt.bin")
    learner = FixedLearner(FixedNetwork(stored), learning)
    for image, label in zip(x, labels, strict=True):
        learner.learn(image, label)
    assert learner.flips > 20
    assert (tmp_path / "learnt.bin").read_bytes() == learnt(learner)
    assert f"{learner.flips} flips" in run(tmp_path / "binep", "learn", "again.bin")


def test_learning_goes_on_from_what_was_learnt(tmp_path: Path):
    """Predictions after learning, in C, are those of the Python model after learning."""
    learning = FixedRule(rule())
    stored, x, labels = exported(BINARY["dense"], tmp_path, 20, learning=learning)
    program = compile_in(tmp_path, "-O2")
    assert "20 vectors, 0 differ" in run(program)
    source = (tmp_path / "main.c").read_text()
    both = source.replace(
        "int32_t class = binep_predict(vector.pixels);",
        "binep_learn(vector.pixels, vector.label);\nint32_t class = binep_predict(vector.pixels);",
    )
    (tmp_path / "main.c").write_text(both)
    compile_in(tmp_path, "-O2")
    done = subprocess.run([program, "vectors.bin"], cwd=tmp_path, capture_output=True, text=True)
    found = [int(line.split()[1]) for line in done.stdout.splitlines()[:-1]]
    learner, expected = FixedLearner(FixedNetwork(stored), learning), []
    for image, label in zip(x, labels, strict=True):
        learner.learn(image, label)
        expected.append(int(learner.fixed.predict(image[None])[0]))
    assert found == expected


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_valgrind_finds_nothing(tmp_path: Path):
    exported(BINARY["two conv"], tmp_path, 3, learning=FixedRule(rule()))
    program = compile_in(tmp_path, "-O1", "-g")
    for words in ([], ["learn", "learnt.bin"]):
        command = ["valgrind", "-q", "--error-exitcode=9", str(program), "vectors.bin", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_makefile_builds_and_checks(tmp_path: Path):
    exported(BINARY["dense"], tmp_path)
    done = subprocess.run(["make", "-s", "check"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "12 vectors, 0 differ" in done.stdout, done.stderr


def test_integer_programs_have_no_floating_point_in_them(tmp_path: Path):
    exported(BINARY["two conv"], tmp_path, learning=FixedRule(rule()))
    for path in tmp_path.glob("*.[ch]"):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        if path.name not in ("main.c", "binep.h"):
            assert not re.search(r"\b(float|double)\b|\d\.\d", code), path.name
    assert not (tmp_path / "float.c").exists()


def test_wrong_vectors_are_refused(tmp_path: Path):
    exported(BINARY["dense"], tmp_path)
    program = compile_in(tmp_path, "-O1")
    vectors = (tmp_path / "vectors.bin").read_bytes()
    for content, message in [
        (b"PK", "not a file of test vectors"),
        (vectors[:-1], "the vectors end early"),
        (vectors[:8] + b"\1\0\0\0" + vectors[12:], "for another network"),
    ]:
        (tmp_path / "wrong.bin").write_bytes(content)
        done = subprocess.run([program, "wrong.bin"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats"], r"usage: binep VECTORS \[states \| time N \| learn OUT\]"),
        (["states", "more"], "usage"),
        (["time"], "usage"),
        (["time", "0"], "allowed are 1 to 1000000 rounds"),
        (["time", "-1"], "allowed are 1 to 1000000 rounds"),
        (["time", "1e3"], "allowed are 1 to 1000000 rounds"),
        (["time", "99999999999999999999"], "allowed are 1 to 1000000 rounds"),
        (["learn"], "usage"),
        (["learn", "nowhere/learnt.bin"], "cannot write what was learnt"),
        (["learn", "out.bin", "more"], "usage"),
    ],
)
def test_what_is_asked_in_other_words_is_refused(words, message: str, learning_program: Path):
    found = subprocess.run(
        [learning_program, "vectors.bin", *words],
        cwd=learning_program.parent,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2 and re.search(message, found.stderr)


def test_a_label_that_is_no_class_teaches_nothing(learning_program: Path):
    vectors = bytearray((learning_program.parent / "vectors.bin").read_bytes())
    vectors[12:14] = b"\x0a\x00"
    (learning_program.parent / "label.bin").write_bytes(vectors)
    words = [learning_program, "label.bin", "learn", "none.bin"]
    done = subprocess.run(words, cwd=learning_program.parent, capture_output=True, text=True)
    assert done.returncode == 2 and "a label is none of the classes" in done.stderr
    assert not (learning_program.parent / "none.bin").exists()


def test_learning_needs_integers(tmp_path: Path):
    with pytest.raises(BinepError, match="learning in C needs .* activations are real"):
        exported(REAL["dense"], tmp_path, learning=FixedRule(rule()))


def test_the_readme_says_how_decisions_compare(tmp_path: Path):
    exported(BINARY["dense"], tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "another class than the float32 network: 0 of 12" in text
    assert re.search(r"\| 3 \| 30 \| \d+ \| 0 \|", text)
    assert "@" not in text
    recipe, network = build(*REAL["dense"])
    c_program.write(store(network, recipe), tmp_path / "real", images(recipe, 2).numpy(), [0, 1])
    assert "activations are real" in (tmp_path / "real" / "README.md").read_text()
