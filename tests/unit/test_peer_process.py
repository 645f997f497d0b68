"""A peer in another process: one of a few lines, and one that our own Python can run as well."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import minilm
from benchmarks.mixes import MIXES, write
from benchmarks.peers.peer import KEEP_FREED_MEMORY, POOLS, Asked, Peer

PROGRAM = """
import os, time
import numpy as np
from benchmarks.laps import Laps
from benchmarks.peers.answering import answer

laps = Laps()

def doubled(number):
    print("prepared")  # a library that prints
    def work():
        print("at work")
        laps.lap()
        time.sleep(0.05)
        return np.array([2.0 * number], dtype=np.float32)
    return work

def settings(names):
    return lambda: np.array([int(os.environ[name]) for name in names])

def broken():
    raise RuntimeError("no")

answer({"doubled": doubled, "settings": settings, "broken": broken}, laps)
"""


def peer(program: str = PROGRAM) -> Peer:
    return Peer([sys.executable, "-c", program], threads=3)


def test_a_peer_times_its_work_and_gives_the_outcome() -> None:
    """Seconds of the work's parts alone, whatever it prints and however long the way is."""
    with peer() as other:
        work = Asked(other, "doubled", {"number": 21})
        assert work.outcome().tolist() == [42]
        start = time.perf_counter()
        first, second = work.seconds()
        assert second >= 0.05
        assert first + second <= time.perf_counter() - start


def test_a_peer_is_ready_before_anything_is_asked() -> None:
    """What it loads takes nothing from what is measured here in the meantime."""
    start = time.perf_counter()
    with peer("import time; time.sleep(0.5)\n" + PROGRAM):
        assert time.perf_counter() - start >= 0.5


def test_a_peer_has_our_threads_and_our_memory() -> None:
    """Every pool, and glibc's settings."""
    with peer() as other:
        assert Asked(other, "settings", {"names": POOLS}).outcome().tolist() == [3] * len(POOLS)
        kept = Asked(other, "settings", {"names": list(KEEP_FREED_MEMORY)}).outcome()
    np.testing.assert_array_equal(kept, [1 << 30, (1 << 31) - 1, 1])


@pytest.mark.parametrize("program", [PROGRAM, "raise SystemExit(1)"])
def test_a_peer_that_ends_is_named(program: str) -> None:
    """Whether at work or before; nobody waits for it."""
    with pytest.raises(SystemExit, match="ended with 1; `make peers`"), peer(program) as other:
        Asked(other, "broken", {}).seconds()


def test_a_peer_that_is_not_installed_is_named() -> None:
    """And so is what installs it."""
    with pytest.raises(SystemExit, match="make peers"):
        Peer(["/nowhere/bin/python"], threads=1)


def test_the_order_of_texts_outlives_sorting_and_batches(tmp_path: Path) -> None:
    """Rows of sentence-transformers, alone and in batches, are of unit length and the same."""
    write(MIXES["lognormal"](5, 1), str(tmp_path / "texts.npz"))
    command = [sys.executable, "-m", "benchmarks.peers.sentence_transformers_peer", minilm.folder()]
    with Peer(command, threads=1) as other:
        alone, batched = (
            Asked(other, "float32", {"texts": str(tmp_path / "texts.npz"), "batch_size": size}).outcome()
            for size in (1, 3)
        )
    assert alone.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(alone, batched, atol=1e-5)
    assert np.abs(alone[0] - alone[1]).max() > 0.01
