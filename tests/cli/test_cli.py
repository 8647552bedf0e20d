"""The command line as a person meets it: what it prints, its exit codes, what it leaves behind."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from binep.training import recipe as recipes
from binep.training import runs

ROOT = Path(__file__).parents[2]
QUICK = [
    *("--set", "network.dense=[24]", "--set", "learning.free_steps=8"),
    *("--set", "training.batch_size=200", "--epochs", "2", "--device", "cpu"),
    *("--name", "digits-1fc-w"),
]


def binep(
    *words: str, cwd: Path, columns: int = 200, **options
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "binep", *words]
    environment = {
        **os.environ,
        "COLUMNS": str(columns),
        "XDG_CACHE_HOME": str(cwd / "cache"),
        "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / "binep-tests-matplotlib"),
        # Compiled once for all tests.
        "NUMBA_CACHE_DIR": str(Path(tempfile.gettempdir()) / "binep-tests-kernels"),
    }
    environment.pop("BINEP_DATA", None)
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=120, **options
    )


def assert_one_line(result: subprocess.CompletedProcess[str], *needles: str) -> None:
    """Exit code 2, one line, no traceback, and the line says what it must."""
    assert result.returncode == 2, result
    said = result.stderr.removeprefix("compiling kernels for this machine, once\n")
    assert said.count("\n") == 1 and said.startswith("binep: "), result.stderr
    for needle in needles:
        assert needle in result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder in which `binep train` was run once."""
    folder = tmp_path_factory.mktemp("cli")
    result = binep("train", *QUICK, cwd=folder)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("digits-1fc-w-seed0: epoch 1 to 2")
    assert [line[:9] for line in lines[1:3]] == ["epoch   1", "epoch   2"]
    assert "test error" in lines[3] and "binep report runs/digits-1fc-w-seed0" in lines[4]
    return folder


def test_train_without_a_recipe_trains_the_digits(trained: Path):
    run = trained / "runs" / "digits-1fc-w-seed0"
    assert (run / "metrics.jsonl").read_text().count("\n") == 2


def test_eval_agrees_with_the_metrics(trained: Path):
    line = (trained / "runs/digits-1fc-w-seed0/metrics.jsonl").read_text().splitlines()[-1]
    expected = json.loads(line)["test_error"]
    result = binep("eval", "runs/digits-1fc-w-seed0", "--json", cwd=trained)
    assert json.loads(result.stdout)["error"] == expected
    assert json.loads(result.stdout)["n"] == 360
    plain = binep("eval", "runs", "--readout", "single", cwd=trained)
    assert f"test error {expected['single']:.2f} %" in plain.stdout


def test_report_writes_a_page(trained: Path):
    result = binep("report", "runs", "--out", "page", cwd=trained)
    assert result.returncode == 0, result.stderr
    assert "page/report.html" in result.stdout
    assert "<html" in (trained / "page" / "report.html").read_text()


def test_gradcheck_prints_a_table_and_draws_a_figure(trained: Path):
    words = ["--set", "network.dense=[24]", "--steps", "3", "--batch", "16", "--beta", "0.01"]
    result = binep("gradcheck", *words, "--out", "figures", cwd=trained)
    assert result.returncode == 0, result.stderr
    assert "EP against BPTT" in result.stdout and "n = 16" in result.stdout
    assert (trained / "figures" / "gradcheck-digits-1fc-w.png").stat().st_size > 1000
    found = binep("gradcheck", "--run", "runs", "--steps", "2", "--json", cwd=trained)
    assert json.loads(found.stdout)["trained"] is True


def test_reproduce_lists_and_shows_studies(tmp_path: Path):
    listed = binep("reproduce", cwd=tmp_path)
    assert {"table1", "table2", "fig-alpha"} <= set(listed.stdout.split())
    shown = binep("reproduce", "table2", "--show", cwd=tmp_path)
    assert shown.returncode == 0 and "3.03" in shown.stdout


def test_results_are_written_and_reproduced_from(trained: Path):
    written = binep("results", "runs", "--to", "kept", cwd=trained)
    assert "seed0.json: 2 of 2 epochs, finished" in written.stdout
    page = binep("reproduce", "--from", "kept", cwd=trained)
    assert page.returncode == 0 and (trained / "RESULTS.md").read_text().startswith("# Results")
    assert (trained / "kept" / "index.csv").read_text().count("digits-1fc-w") == 1
    figure = binep("reproduce", "fig-alpha", "--from", "kept", cwd=trained)
    assert "not run" in figure.stdout and "docs/results/figures/fig-alpha.png" in figure.stdout


def test_choose_compares_on_validation_images(tmp_path: Path):
    words = ["--variant", "network.dense=[8]", "--epochs", "1", "--to", "choice.json"]
    result = binep("choose", "digits-1fc-w", *words, "--device", "cpu", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "network.dense=[8]" in result.stdout and "lowest" in result.stdout
    assert (tmp_path / "choice.json").is_file()


def test_tune_writes_a_recipe_that_can_be_trained(tmp_path: Path):
    quick = ["--set", "network.dense=[32]", "--set", "training.batch_size=64"]
    words = ["--batches", "6", "--epochs", "1", "--to", "mine.toml", "--device", "cpu"]
    result = binep("tune", "digits-1fc-w", *quick, *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "found: gamma = " in result.stdout and "probe, pi near" in result.stderr
    assert recipes.load(tmp_path / "mine.toml").name == "digits-1fc-w-tuned"


def test_several_seeds_and_json(tmp_path: Path):
    result = binep("train", *QUICK, "--seeds", "2", "--seed", "5", "--json", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert [Path(each["run"]).name for each in found] == [
        "digits-1fc-w-seed5",
        "digits-1fc-w-seed6",
    ]
    assert all(each["finished"] for each in found)


def test_a_seed_that_is_there_is_noticed_before_any_is_trained(trained: Path, tmp_path: Path):
    there = tmp_path / "runs" / "digits-1fc-w-seed1"
    shutil.copytree(trained / "runs" / "digits-1fc-w-seed0", there)
    assert_one_line(binep("train", *QUICK, "--seeds", "2", cwd=tmp_path), "seed1 already holds")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [there.name]


def test_resume_of_a_finished_run_is_nothing_to_do(trained: Path):
    result = binep("train", *QUICK, "--resume", cwd=trained)
    assert result.returncode == 0 and "test error" in result.stdout
    assert "no epoch is left to train" in result.stdout


def test_recipes_are_listed_and_printed(tmp_path: Path):
    listed = binep("recipes", cwd=tmp_path, columns=80).stdout
    assert all(re.search(rf"^\s*{name}\s", listed, re.MULTILINE) for name in recipes.names())
    printed = binep("recipes", "mnist-1fc-w", "--set", "learning.beta=0.5", cwd=tmp_path).stdout
    (tmp_path / "mine.toml").write_text(printed)
    assert recipes.load(tmp_path / "mine.toml").learning.beta == 0.5
    assert len(json.loads(binep("recipes", "--json", cwd=tmp_path).stdout)) == len(recipes.names())


def test_a_users_file_works_where_a_name_does(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('extends = "digits-1fc-w"\n[network]\ndense = [16]\n')
    result = binep("train", "mine.toml", "--epochs", "1", "--device", "cpu", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs" / "mine-seed0" / "recipe.toml").exists()


def commands() -> list[list[str]]:
    tops = [
        "train",
        "recipes",
        "eval",
        "report",
        "gradcheck",
        "reproduce",
        "export",
        "hardware",
        "data",
    ]
    return [[top] for top in tops] + [["data", "fetch"], ["data", "check"]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(words: list[str], tmp_path: Path):
    result = binep(*words, "--help", cwd=tmp_path)
    assert result.returncode == 0
    if words != ["data"]:
        assert "Example: binep " + " ".join(words) in re.sub(r"\s+", " ", result.stdout)


@pytest.mark.parametrize(
    ("words", "needles"),
    [
        (
            ["train", "mnist-1fc"],
            ["'mnist-1fc-w', 'mnist-1fc-wa' or 'mnist-1fc-w-a'", "binep recipes"],
        ),
        (["predict", "nowhere", "x.png"], ["nowhere is not a run"]),
        (["train", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["train", "--set", "learning.bta=1"], ["learning.bta", "'beta'"]),
        (["train", "--set", "beta"], ["section.key=value"]),
        (["train", "--epochs", "0"], ["training.epochs=0", "at least 1"]),
        (["train", "--seeds", "0"], ["--seeds 0"]),
        (["train", "--checkpoint-every", "-1"], ["--checkpoint-every -1", "at least 0"]),
        (["train", "--device", "gpu"], ["unknown device 'gpu'", "auto, cpu, cuda"]),
        (["train", "--engine", "warp"], ["unknown engine 'warp'", "reference"]),
        (["train", "mnist-1fc-w", "--offline"], ["train-images-idx3-ubyte", "offline"]),
        (["train", "--out", "file"], ["cannot create", "file"]),
        (["eval", "nowhere"], ["nowhere is not a run"]),
        (["eval", "."], [". is not a run"]),
        (["recipes", "mnist"], ["unknown recipe 'mnist'"]),
        (["data", "check", "mnits"], ["unknown data set 'mnits'", "'mnist'"]),
        (["data", "fetch", "mnits"], ["unknown data set 'mnits'"]),
        (["report", "nowhere"], ["nowhere is not a run"]),
        (["gradcheck", "digits-1fc-wa"], ["binary"]),
        (["gradcheck", "--dtype", "float16"], ["'float16'", "float32, float64"]),
        (["reproduce", "table9"], ["'table9'", "did you mean 'table"]),
        (["reproduce", "table1", "--seeds", "0"], ["seeds=0"]),
        (["reproduce", "--from", "."], [". holds no runs"]),
        (["gradcheck", "--run", "runs", "--set", "learning.beta=1"], ["--run", "learning.beta=1"]),
        (["bench", "--out", "file/table.md"], ["cannot create", "file"]),
        (["hardware", "digits-1fc-wa", "--images", "0"], ["--images 0"]),
        (["choose", "digits-1fc-w", "--variant", "learning.beta=1", "--to", "."], ["is a folder"]),
        (["train", "x" * 300], ["unknown recipe"]),
        (["train", "--set", f"learning.beta=1{'0' * 400}"], ["learning.beta=1000", "a number"]),
        (["trian"], ["trian"]),
        (["train", "--epoch", "3"], ["--epoch"]),
        (["train", "--epochs", "three"], ["--epochs"]),
        (["eval"], ["RUN"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_get_one_clear_line(words: list[str], needles: list[str], tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert_one_line(binep(*words, cwd=tmp_path), *needles)
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_a_command_without_a_word_prints_its_help_and_nothing_else(tmp_path: Path):
    result = binep("data", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, "")
    assert "fetch" in result.stdout and "check" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_a_clear_error(tmp_path: Path):
    assert_one_line(binep("train", "--device", "cuda", cwd=tmp_path), "no usable GPU")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_saves_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path):
    words = [sys.executable, "-u", "-m", "binep", "train", "--device", "cpu", "--epochs", "1000"]
    words += ["--set", "optimizer.tau=[5e-7, 5e-7]"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("digits-1fc-w+tau=5e-07-seed0")
    process.stdout.readline()
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "stopped and saved" in rest
    typed = "binep train --device cpu --epochs 1000 --set 'optimizer.tau=[5e-7, 5e-7]' --resume"
    assert typed in rest
    record = json.loads((tmp_path / "runs/digits-1fc-w+tau=5e-07-seed0/record.json").read_text())
    assert record["status"] == "interrupted"


@pytest.mark.skipif(shutil.which("nohup") is None, reason="needs nohup")
@pytest.mark.usefixtures("heard")
def test_under_nohup_training_goes_on_when_the_terminal_closes(tmp_path: Path):
    words = ["nohup", sys.executable, "-u", "-m", "binep", "train", "--epochs", "1000"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("digits-1fc-w-seed0")
    process.send_signal(signal.SIGHUP)
    for _ in range(3):
        assert "stopped" not in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors


@pytest.mark.usefixtures("heard")
def test_ctrl_c_ends_other_commands_in_one_line(tmp_path: Path):
    words = [sys.executable, "-m", "binep", "choose", "digits-1fc-w", "--device", "cpu"]
    process = subprocess.Popen(
        [*words, "--variant", "network.dense=[8]", "--epochs", "10000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=6)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.splitlines()[-1]) == (130, "binep: interrupted")
    assert "Traceback" not in errors


def test_killed_training_resumes_to_the_same_bits(tmp_path: Path):
    """The short version of benchmarks/kill_and_resume.py."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import kill_and_resume

    overrides = ["training.epochs=9", "network.conv=[8]", "network.per_class=2"]
    assert kill_and_resume.compare("digits-conv-wa", overrides, 2, 0, tmp_path) == 2


def test_trainings_in_a_queue_all_come_to_their_end(tmp_path: Path):
    """With benchmarks/train_many.py: one that fails does not keep the others from running."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import train_many

    short = "--epochs 1 --set network.dense=[8] --set learning.free_steps=3 --name digits-1fc-w"
    queue = [f"digits-1fc-w --seed 3 {short}", "nonsense", f"digits-1fc-w --seed 4 {short}"]
    words = ["--out", str(tmp_path), "--device", "cpu"]
    assert train_many.train_many(queue, words, 2, tmp_path) == ["nonsense"]
    assert "nonsense" in (tmp_path / "nonsense.log").read_text()
    for seed in (3, 4):
        assert len(runs.open_run(tmp_path / f"digits-1fc-w-seed{seed}").metrics) == 1


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path: Path):
    """On a file system of 64 kB the run fits, its checkpoints do not."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        result = binep("train", "--out", "small", "--epochs", "1", "--device", "cpu", cwd=tmp_path)
        assert_one_line(result, "cannot write", "disk is full")
        assert not list(small.rglob("*.part"))
        assert not list(small.rglob("checkpoint-*"))
        for path in small.rglob("*.json"):
            json.loads(path.read_text())
    finally:
        subprocess.run(["umount", str(small)], check=False)


def test_a_read_only_folder_is_told(tmp_path: Path):
    folder = tmp_path / "locked"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a read-only file system cannot be mounted here")
    try:
        result = binep("train", "--out", "locked", "--device", "cpu", cwd=tmp_path)
        assert_one_line(result, "locked", "read-only")
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def test_mutated_recipe_files_on_the_command_line(tmp_path: Path):
    """A few of the 200 of test_recipe.py, through the whole program."""
    rng = random.Random(1)
    text = recipes.dumps(recipes.load("digits-1fc-w"))
    for n in range(2):
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = lines[at][: len(lines[at]) // 2] + rng.choice(["?", " = = ", "[["])
        (tmp_path / f"{n}.toml").write_text("\n".join(lines))
        assert_one_line(binep("recipes", f"{n}.toml", cwd=tmp_path))


def test_help_does_not_wait_for_torch():
    code = "import sys, binep.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(script: Path, tmp_path: Path):
    # Threads that wait for each other on a busy machine take ten times as long as one.
    result = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") >= 4
    if script.stem == "own_network":
        errors = re.findall(r"test error (\S+) %", result.stdout)
        assert float(errors[-1]) < 5
    if script.stem == "ep_against_bptt":
        holds, clamped, restless = (
            [float(cosine) for cosine in re.findall(r" (-?\d\.\d{4})", part)]
            for part in re.split(r"\n(?=Nudged|A free)", result.stdout)
        )
        assert min(holds) > 0.99 and min(clamped) < 0.99 and min(restless) < 0.5


def test_the_version_is_told(tmp_path: Path):
    from binep import __version__

    assert binep("--version", cwd=tmp_path).stdout == f"binep {__version__}\n"


def test_runs_are_listed_with_their_state_and_error(trained: Path):
    result = binep("runs", "--json", cwd=trained)
    (row,) = json.loads(result.stdout)
    assert (row["state"], row["epochs"], row["of"]) == ("finished", 2, 2)
    assert row["test_error"] == pytest.approx(
        runs.open_run(trained / "runs").last["test_error"]["average"]
    )
    assert "finished" in binep("runs", cwd=trained).stdout


def test_a_picture_is_read_as_eval_reads_it(trained: Path):
    from PIL import Image

    from binep import data

    (folder,) = (trained / "runs").iterdir()
    digits, network = data.load("digits"), runs.open_run(folder).network("cpu")
    network.free_steps = runs.open_run(folder).recipe.learning.free_steps
    pictures = [trained / f"{n}.png" for n in range(3)]
    for path, image in zip(pictures, digits.test.images, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    expected = [str(int(n)) for n in network.predict_images(digits.test.images[:3])]
    result = binep("predict", str(folder), *map(str, pictures), "--json", cwd=trained)
    assert [row["class"] for row in json.loads(result.stdout)] == expected
    Image.new("L", (9, 8)).save(trained / "wide.png")
    assert_one_line(binep("predict", str(folder), "wide.png", cwd=trained), "9 x 8", "--resize")
    assert binep("predict", str(folder), "wide.png", "--resize", cwd=trained).returncode == 0
