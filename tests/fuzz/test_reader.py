"""The exported C program under libFuzzer, where clang brings it; see benchmarks/fuzz_c.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz_c


def test_what_libfuzzer_makes_up_is_taken_or_refused(tmp_path: Path):
    compiler = fuzz_c.clang()
    if compiler is None:
        pytest.skip("needs clang with libFuzzer")
    fuzz_c.write("convolutions of bits, learning", tmp_path)
    found = fuzz_c.fuzz(compiler, tmp_path, "-runs=1000")
    assert found["executions"] >= 1000 and found["inputs_kept"] > fuzz_c.CALLS
