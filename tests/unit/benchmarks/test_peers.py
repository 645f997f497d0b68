"""Peers: the lines between a benchmark and its sides, what is pinned, and that all sides compute the same."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from benchmarks import offline, ours
from benchmarks.machine import ROOT
from benchmarks.peers import answering, selvage_peer, sentence_transformers_peer
from benchmarks.peers.onnx_export import Embedder
from benchmarks.peers.process import KEEP_FREED_MEMORY, POOLS, Peer, PeerRefused
from benchmarks.servers import other_server
from benchmarks.workloads import MINILM, minilm_folder, token_ids

LISTS = [*sorted((ROOT / "benchmarks" / "peers").glob("*.txt")), ROOT / "benchmarks" / "published" / "vllm.txt"]
PINNED = re.compile(r"[\w.-]+(\[[a-z,]+\])?==[0-9][\w.+]*")
PROGRAM = [sys.executable, str(ROOT / "tests" / "support" / "peer_program.py")]


def test_a_peer_times_its_work_and_gives_the_outcome() -> None:
    """Whatever it prints; short runs fill the turn. It has our threads in every pool, and our memory of glibc. Where it
    cannot do what it was started for it says why, before its block begins."""
    with Peer(PROGRAM, threads=3) as other:
        assert other.outcome("doubled", number=21).tolist() == [42]
        times = other.run("doubled", 0.01, number=21)
        assert other.outcome("runs").tolist() == [1 + times["runs"]]
        assert 0 < times["seconds"] < 0.01 <= times["runs"] * 0.01
        assert other.outcome("settings", names=POOLS).tolist() == [3] * len(POOLS)
        assert other.outcome("settings", names=list(KEEP_FREED_MEMORY)).tolist() == [1 << 30, (1 << 31) - 1, 1]
    with pytest.raises(PeerRefused, match="no such products"), Peer([*PROGRAM, "no such products"], threads=1):
        raise AssertionError("never entered")


@pytest.mark.parametrize("program", [PROGRAM, [sys.executable, "-c", "raise SystemExit(1)"]])
def test_a_peer_that_dies_is_named(program: list[str]) -> None:
    """Whether at work or before; nobody waits for it."""
    with pytest.raises(SystemExit, match="ended with 1 before it answered"), Peer(program, threads=1) as other:
        other.run("broken")


def test_a_server_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log() -> None:
    program = [sys.executable, "-c", "print('the reason', flush=True); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match="side ended with 3\nthe reason"):
        other_server("side", program, "http://127.0.0.1:1", {}).__enter__()


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_version_of_a_peer_is_pinned_once_and_make_installs_it(path: Path) -> None:
    """What was measured can be installed again."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    names = [re.split(r"[\[=]", line)[0].lower().replace("_", "-") for line in lines]
    assert len(names) == len(set(names))
    assert re.search(
        rf"^(peers:.*/{path.stem}/ready|.*: {path.relative_to(ROOT)})", (ROOT / "Makefile").read_text(), re.M
    )


def test_sentence_transformers_and_our_engine_agree() -> None:
    """In batches, alone, and as single jobs: rows of unit length in the order given."""
    sent, model = token_ids((30, 5, 17)), SentenceTransformer(str(minilm_folder()), device="cpu")
    alone, batched = (sentence_transformers_peer.embed(model, sent, size) for size in (1, 2))
    engine = ours.Ours(MINILM)
    assert np.abs(alone[0] - alone[1]).max() > 0.01
    for rows in (batched, engine.embed(sent), selvage_peer.dense(engine, sent, 3), selvage_peer.dense(engine, sent, 1)):
        np.testing.assert_allclose(rows, alone, atol=1e-5)
    assert engine.linear_flops == 2 * 6 * (4 * 384**2 + 2 * 384 * 1536)


@pytest.mark.parametrize(("size", "streams"), [(2, 1), (2, 3), (9, 1)])
def test_batches_are_padded_longest_first_and_rows_come_back_in_order(size: int, streams: int) -> None:
    """Whether one batch runs at a time or several do, and where the last one is smaller."""
    sent = token_ids((5, 17, 3, 30, 17))
    shapes: list[tuple[int, ...]] = []

    def infer(ids: Any, mask: Any) -> np.ndarray:
        assert not ids[mask == 0].any()
        shapes.append(ids.shape)
        return np.stack([mask.sum(axis=1), ids.sum(axis=1)], axis=1).astype(np.float32)

    rows = answering.embed(infer, sent, size, streams)
    assert rows.tolist() == [[len(text), text.sum()] for text in sent]
    lengths = [30, 17, 17, 5, 3]
    batches = [lengths[at : at + size] for at in range(0, 5, size)]
    assert sorted(shapes) == sorted((len(batch), batch[0]) for batch in batches)


@pytest.mark.parametrize("model", ["random:tiny-bert", "random:tiny-qwen3"])
def test_a_random_shape_on_disk_is_the_same_to_all_sides(model: str, tmp_path: Path) -> None:
    """What is exported for runtimes, sentence-transformers and our engine agree on its rows, in padded batches."""
    folder, sent = tmp_path / "model", token_ids((30, 5, 17), vocabulary=1000)
    offline.write_random(model, folder)
    theirs = sentence_transformers_peer.embed(SentenceTransformer(str(folder), device="cpu"), sent, 3)
    exported = Embedder(folder)

    @torch.inference_mode()
    def infer(ids: Any, mask: Any) -> np.ndarray:
        return exported(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    assert np.abs(theirs[0] - theirs[1]).max() > 0.01
    np.testing.assert_allclose(answering.embed(infer, sent, 3), theirs, atol=1e-5)
    np.testing.assert_allclose(ours.Ours(str(folder)).embed(sent), theirs, atol=1e-5)
