"""Files and folders as other systems see them: Windows' names, letters of either case."""

import subprocess
from collections import Counter
from pathlib import Path, PureWindowsPath

import pytest

from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs
from conftest import small_recipe

ROOT = Path(__file__).parents[1]
FORBIDDEN = set('<>:"|?*')
LONGEST = 180  # of a path in a checkout; Windows allows 260 with the folder that it is in


def fits_windows(path: str) -> bool:
    parts = PureWindowsPath(path)
    return (
        not parts.is_absolute()
        and not parts.is_reserved()
        and not any(set(part) & FORBIDDEN or part.endswith((".", " ")) for part in parts.parts)
    )


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("needs a checkout")
    return [name for name in done.stdout.split("\0") if name]


def test_a_checkout_fits_windows():
    wrong = [name for name in tracked() if not fits_windows(name) or len(name) > LONGEST]
    assert not wrong


def test_no_two_files_differ_in_the_case_of_letters_alone():
    counts = Counter(name.casefold() for name in tracked())
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("name", ["con", "nul.txt", "a:b", "a ", "a.", 'a"b', "../up:", "a|b"])
def test_the_check_knows_what_windows_refuses(name: str):
    assert not fits_windows(name)


def test_runs_of_shipped_recipes_fit_windows(tmp_path: Path):
    for name in recipes.names():
        assert fits_windows(runs.run_name(recipes.load(name), 0))
    run = runs.train(small_recipe("digits-1fc-w", "training.epochs=1"), out=tmp_path)
    inside = [str(path.relative_to(tmp_path)) for path in run.folder.rglob("*")]
    assert inside and all(fits_windows(name) for name in inside)


def test_names_that_differ_in_case_are_one_run_where_folders_are(tmp_path: Path):
    """As on Windows and macOS: what is there is not overwritten."""
    lower = small_recipe("digits-1fc-w", "training.epochs=1")
    run = runs.train(lower, out=tmp_path)
    upper = recipes.from_table({**recipes.plain(lower), "name": lower.name.upper()})
    other = tmp_path / runs.run_name(upper, 0)
    if not other.exists():  # a file system that tells them apart: one that does not is made up
        other.symlink_to(run.folder)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(BinepError, match="already holds a run"):
        runs.train(upper, out=tmp_path)
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
