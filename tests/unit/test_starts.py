"""Measurements in processes of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.starts import against, by_side, figures, seconds, started

STARTING = """
import sys, time
from benchmarks.starts import started
from test_starts import told

if __name__ == "__main__":
    started(told, sys.argv[1])
"""


def told(file: str) -> None:
    """Its own number, and then nothing for a while."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def test_a_start_is_a_process_of_its_own() -> None:
    """With its outcome, or with its failure."""
    assert started(os.getpid) != os.getpid()
    with pytest.raises(SystemExit, match="1"):
        started(os.strerror, "no number")


def test_a_start_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Even where that one has no time to end anything."""
    file, program = tmp_path / "number", tmp_path / "starting.py"
    program.write_text(STARTING)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    with subprocess.Popen([sys.executable, program, file], env=os.environ | {"PYTHONPATH": paths}) as other:
        _until(lambda: file.exists() and file.read_text() != "")
        other.kill()
    _until(lambda: not _runs(int(file.read_text())))


def test_rounds_are_told_by_side_and_start() -> None:
    """Those of the first start before those of the second."""
    first, second = {"a": [[1.0], [2.0]], "b": [[3.0]]}, {"a": [[4.0]], "b": [[5.0]]}
    assert by_side([first, second]) == {"a": [first["a"], second["a"]], "b": [first["b"], second["b"]]}


def test_of_each_start_the_lower_quartiles_of_the_parts_count() -> None:
    """Their geometric mean; quartiles are of whole runs."""
    times = [[[1.0, 9.0], [9.0, 1.0], [1.0, 1.0], [1.0, 1.0], [8.0, 8.0]], [[4.0, 4.0]]]
    assert seconds(times) == pytest.approx(4)
    assert figures(times) == {
        "seconds": pytest.approx(4),
        "parts": 2,
        "starts": [2, 8],
        "lower_quartile": 3.5,
        "median": 9,
        "upper_quartile": 10,
        "runs": 6,
    }


def test_a_ratio_is_the_mean_of_the_starts_own() -> None:
    """With those that are furthest apart."""
    ours, other = [[[1.0]], [[1.0, 0.0]]], [[[2.0]], [[8.0]]]
    assert against(ours, other) == {"ratio": 4, "error": 0.693, "lowest": 2, "highest": 8}
    assert against(ours[:1], other[:1]) == {"ratio": 2, "lowest": 2, "highest": 2}


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether that process is there, and not merely waited for by nobody."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
