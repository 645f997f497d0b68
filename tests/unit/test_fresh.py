"""Files that are read again when they change."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.security import LOOK_SECONDS, Fresh


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def later(self) -> None:
        self.now += LOOK_SECONDS


def number(contents: Sequence[bytes]) -> int:
    return sum(map(int, contents))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_changed_is_read_again_a_second_later(tmp_path: Path, clock: Clock) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("2")
    sum_of = Fresh([str(first), str(second)], number, pytest.fail, clock)
    second.write_text("20")
    assert sum_of.value == 3
    clock.later()
    assert sum_of.value == 21


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("no number"), Path.unlink], ids=["nonsense", "gone"])
def test_what_makes_no_sense_leaves_what_was_there(tmp_path: Path, clock: Clock, spoil: object) -> None:
    """It is told once, and what makes sense again is taken."""
    path, errors = tmp_path / "file", []
    path.write_text("1")
    fresh = Fresh([str(path)], number, errors.append, clock)
    spoil(path)  # type: ignore[operator]
    for _ in range(3):
        clock.later()
        assert fresh.value == 1
    assert len(errors) == 1
    path.write_text("22")
    clock.later()
    assert fresh.value == 22


def test_a_file_replaced_while_it_is_read_is_looked_at_again(tmp_path: Path, clock: Clock) -> None:
    """Half of the old and half of the new one are never taken."""
    path, written = tmp_path / "file", ["3"]
    path.write_text("1")

    def read(contents: Sequence[bytes]) -> int:
        if contents[0] == b"2" and written:
            path.write_text("333")
            written.pop()
        return number(contents)

    fresh = Fresh([str(path)], read, pytest.fail, clock)
    path.write_text("2")
    path.touch()
    clock.later()
    assert fresh.value == 1
    clock.later()
    assert fresh.value == 333
