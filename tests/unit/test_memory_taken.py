"""The memory of this process is read through a descriptor that stays open, and that others may close or reuse."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import memory
from shared.memory import memory_taken

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads proc(5)")


@pytest.fixture
def descriptor() -> Iterator[int]:
    """The one that is read, opened anew."""
    memory._statm.cache_clear()
    assert memory_taken() > 0
    yield memory._statm(os.getpid())
    memory._statm.cache_clear()


def test_a_descriptor_that_others_closed_is_opened_again(descriptor: int) -> None:
    """It would count no memory for ever."""
    os.close(descriptor)
    assert memory_taken() > 0
    assert memory._statm.cache_info().misses == 1  # the next request finds it open
    assert memory_taken() > 0
    assert memory._statm.cache_info().misses == 1


@pytest.mark.parametrize("content", [b"", b"one", b"no number"], ids=["empty", "one word", "words"])
def test_a_descriptor_of_another_file_is_left_to_its_owner(descriptor: int, tmp_path: Path, content: bytes) -> None:
    """Every request would fail; and who opened the file goes on with it."""
    file = tmp_path / "file"
    file.write_bytes(content)
    other = os.open(file, os.O_RDONLY)
    os.dup2(other, descriptor)
    assert memory_taken() > 0
    assert memory._statm(os.getpid()) != descriptor
    assert os.pread(descriptor, 100, 0) == content
    os.close(other)
    os.close(descriptor)


def test_memory_that_cannot_be_read_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried twice, not for ever."""
    tries = list[int]()
    monkeypatch.setattr("shared.memory.os.pread", lambda *_: tries.append(1) or b"")
    assert (memory_taken(), len(tries)) == (0, 2)
