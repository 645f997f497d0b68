"""Peers: the lines between a benchmark and its sides, and what is pinned."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from benchmarks import ours, random_folders
from benchmarks.machine import ROOT
from benchmarks.peers import batches, selvage_peer, sentence_transformers_peer
from benchmarks.peers.answering import write_texts
from benchmarks.peers.embedder import Embedder
from benchmarks.peers.process import KEEP_FREED_MEMORY, POOLS, Peer, PeerRefused
from benchmarks.workloads import MINILM, Ids, minilm_folder, token_ids

LISTS = sorted((ROOT / "benchmarks" / "peers").glob("*.txt"))
PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[0-9][A-Za-z0-9.+]*")
PROGRAM = [sys.executable, str(ROOT / "tests" / "support" / "peer_program.py")]


def test_a_peer_times_its_work_and_gives_the_outcome() -> None:
    """Whatever it prints; short runs fill the turn. It has our threads in every pool, and our memory of glibc."""
    with Peer(PROGRAM, threads=3) as other:
        assert other.outcome("doubled", number=21).tolist() == [42]
        told = other.run("doubled", 0.01, number=21)
        assert other.outcome("runs").tolist() == [1 + told["runs"]]
        assert 0 < told["seconds"] < 0.01 <= told["runs"] * 0.01
        assert other.outcome("settings", names=POOLS).tolist() == [3] * len(POOLS)
        assert other.outcome("settings", names=list(KEEP_FREED_MEMORY)).tolist() == [1 << 30, (1 << 31) - 1, 1]


@pytest.mark.parametrize("program", [PROGRAM, [sys.executable, "-c", "raise SystemExit(1)"]])
def test_a_peer_that_dies_is_named(program: list[str]) -> None:
    """Whether at work or before; nobody waits for it."""
    with pytest.raises(SystemExit, match="ended with 1 before it answered"), Peer(program, threads=1) as other:
        other.run("broken")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_version_of_a_peer_is_pinned_once_and_make_installs_it(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    names = [re.split(r"[\[=]", line)[0].lower().replace("_", "-") for line in lines]
    assert len(names) == len(set(names))
    (rule,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("peers:"))
    assert f"$(PEERS)/{path.stem}/ready" in rule


def theirs(sent: list[Ids], folder: Path, apart: bool) -> list[np.ndarray]:
    """Alone and in batches; apart as it is measured, else without the seconds that a process imports for."""
    if not apart:
        model = SentenceTransformer(str(minilm_folder()), device="cpu")
        return [sentence_transformers_peer.embed(model, sent, size) for size in (1, 2)]
    file = write_texts(sent, folder / "texts.npz")
    command = [sys.executable, "-m", "benchmarks.peers.sentence_transformers_peer", minilm_folder(), "float32"]
    with Peer(command, threads=1) as other:
        return [other.outcome("embed", file=file, batch_size=size) for size in (1, 2)]


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sentence_transformers_and_our_engine_agree(apart: bool, tmp_path: Path) -> None:
    """In batches, alone, and as single jobs: rows of unit length in the order given."""
    sent = token_ids((30, 5, 17))
    alone, batched = theirs(sent, tmp_path, apart)
    engine = ours.Ours(MINILM)
    assert np.abs(alone[0] - alone[1]).max() > 0.01
    for rows in (batched, engine.embed(sent), selvage_peer.dense(engine, sent, 3), selvage_peer.dense(engine, sent, 1)):
        np.testing.assert_allclose(rows, alone, atol=1e-5)
    assert engine.linear_flops == 2 * 6 * (4 * 384**2 + 2 * 384 * 1536)


def test_a_peer_that_cannot_do_here_what_it_was_started_for_says_why() -> None:
    """Before its block begins; what a library prints while it loads is no answer."""
    with pytest.raises(PeerRefused, match="no such products"), Peer([*PROGRAM, "no such products"], threads=1):
        raise AssertionError("never entered")


@pytest.mark.parametrize(("size", "streams"), [(1, 1), (2, 1), (2, 3), (9, 1)])
def test_batches_are_padded_longest_first_and_rows_come_back_in_order(size: int, streams: int) -> None:
    """Whether one batch runs at a time or several do, and where the last one is smaller."""
    sent = token_ids((5, 17, 3, 30, 17))
    shapes: list[tuple[int, ...]] = []

    def infer(ids: Any, mask: Any) -> np.ndarray:
        assert not ids[mask == 0].any()
        shapes.append(ids.shape)
        return np.stack([mask.sum(axis=1), ids.sum(axis=1)], axis=1).astype(np.float32)

    rows = batches.embed(infer, sent, size, streams)
    assert rows.tolist() == [[len(each), each.sum()] for each in sent]
    lengths = [30, 17, 17, 5, 3]
    assert sorted(shapes, reverse=True) == sorted(
        [(len(lengths[at : at + size]), lengths[at]) for at in range(0, 5, size)], reverse=True
    )


@pytest.mark.parametrize("model", ["random:tiny-bert", "random:tiny-qwen3"])
def test_a_random_shape_on_disk_is_the_same_to_all_sides(model: str, tmp_path: Path) -> None:
    """What is exported for runtimes, sentence-transformers and our engine agree on its rows, in padded batches."""
    folder, sent = random_folders.write(model, tmp_path / "model"), token_ids((30, 5, 17))
    theirs = sentence_transformers_peer.embed(SentenceTransformer(str(folder), device="cpu"), sent, 3)
    exported = Embedder(folder)

    @torch.inference_mode()
    def infer(ids: Any, mask: Any) -> np.ndarray:
        return exported(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    assert np.abs(theirs[0] - theirs[1]).max() > 0.01
    np.testing.assert_allclose(batches.embed(infer, sent, 3), theirs, atol=1e-5)
    np.testing.assert_allclose(ours.Ours(str(folder)).embed(sent), theirs, atol=1e-5)
