"""Stamps of a request's way: which points are stamped, and how calls find their stamps."""

import pkgutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.latency import CALL, PARTS, ROW, parts
from benchmarks.load import stamped
from benchmarks.load.stamped import StampFile, first_stamps


def test_every_stamped_function_is_there_and_every_point_is_stamped() -> None:
    """A function that was renamed would leave its point, and with it every call, without a time."""
    names = [name for wrapped in stamped.WRAPPED.values() for name, _, _ in wrapped]
    assert all(callable(pkgutil.resolve_name(name)) for name in names)
    assert {point for wrapped in stamped.WRAPPED.values() for _, _, point in wrapped} == {*stamped.POINTS}


def test_parts_cover_a_call_without_gaps() -> None:
    """Each part begins where the one before ended, so that nothing of a call is left out."""
    parts = list(PARTS.values())
    assert [begin for begin, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == ("begins", "ends")
    assert {point for part in parts for point in part} == {*ROW}
    assert CALL not in PARTS


def test_a_call_has_the_first_stamp_of_each_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamps before the first call, after the last, and later ones of the same call count for nothing."""
    now = iter([5, 10, 12, 14, 21, 22, 23, 40])
    monkeypatch.setattr("benchmarks.load.stamped.time.monotonic_ns", lambda: next(now))
    files = [StampFile(tmp_path / name) for name in ("first", "second")]
    for file, point in ((0, 0), (0, 0), (0, 1), (0, 0), (0, 0), (1, 2), (1, 2), (0, 1)):
        files[file].add(point)
    begins = np.array([10, 20])
    found = first_stamps([tmp_path / "first", tmp_path / "second"], 3, begins, 40)
    assert found.tolist() == [[10, 12, 0], [21, 0, 22]]


def test_what_comes_by_on_its_own_is_no_call_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of the load reaches point 2 before the call has reached point 1: the answer is the one behind it."""
    now = iter([11, 12, 15, 18, 21, 24, 33])
    monkeypatch.setattr("benchmarks.load.stamped.time.monotonic_ns", lambda: next(now))
    file = StampFile(tmp_path / "stamps")
    for point in (0, 2, 1, 2, 0, 2, 2):
        file.add(point)
    found = first_stamps([tmp_path / "stamps"], 3, np.array([10, 20, 30]), 40)
    assert found.tolist() == [[11, 15, 18], [21, 0, 24], [0, 0, 33]]


def test_calls_without_all_stamps_are_counted_and_many_are_refused() -> None:
    """Both numbers are told; a median over a few of the calls would be one of another load."""
    begins = 1_000_000 * np.arange(1, 101)
    stamps = begins[:, None] + 1000 * np.arange(1, len(stamped.POINTS) + 1)
    times = np.stack([begins, begins + 20_000, begins + 30_000], axis=1)
    stamps[:5, 4] = 0
    figures = parts(stamps, times)
    assert (figures["calls"], figures["calls with all stamps"]) == (100, 95)
    assert figures[CALL] == 0.03
    assert figures["worker: queue"] == 0.001
    stamps[5, 7] = 0
    with pytest.raises(SystemExit, match="only 94 of 100 calls came by every point; most lack 'job came'"):
        parts(stamps, times)
