"""The engine, sentence-transformers and ONNX Runtime embed the same token ids with MiniLM's real weights.

Every side is a process of its own and waits while others have their turn. Outputs are compared before anything is
timed; batch sizes of tuned sides are chosen for each mix of lengths. ONNX Runtime has a graph with fused attention. A
side in bfloat16 is there only where the processor makes such products: emulated ones take ten times as long.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.benchmark import Options
from benchmarks.engine import peer_of, products
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, python_of
from benchmarks.rounds import ALONE, Figures, Turn
from benchmarks.workloads import MIXES, minilm_folder, token_ids

RATE, COMPARED = "tokens/s", ("tokens/s",)
PEERS = {"sentence-transformers": ("sentence-transformers", "torch"), "onnxruntime": ("onnxruntime",)}
SIZES, DEFAULT, TUNED = (2, 8, 32), 32, dict[tuple[str, str], int]()
"""Sizes of batches; those that were found to be best, by peer and texts: a later start keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Who embeds, and how it makes batches. `differs`: the most by which a number of a unit vector may."""

    peer: str
    batches: Literal["own", "default", "tuned"] = "own"
    differs: float = 1e-5


WHOSE, EXACT = "selvage float32", "sentence-transformers default"
SIDES = {
    WHOSE: Side(peer="float32"),
    "selvage bfloat16": Side(peer="bfloat16", differs=2e-2),
    EXACT: Side(peer="sentence-transformers", batches="default"),
    "sentence-transformers, best batch": Side(peer="sentence-transformers", batches="tuned"),
    "ONNX Runtime float32, best batch": Side(peer="onnxruntime", batches="tuned"),
}


def sides() -> dict[str, Side]:
    """Those that there are on this processor."""
    able = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return {name: side for name, side in SIDES.items() if able or side.peer != "bfloat16"}


@contextmanager
def peers(options: Options, dtypes: Sequence[Any]) -> Iterator[dict[str, Peer]]:
    """All processes, loading at the same time and loaded when this begins."""
    model, threads = minilm_folder(), options.threads
    others = {"sentence-transformers": "sentence_transformers_peer", "onnxruntime": "onnx_peer"}
    loading: dict[str, Peer] = {dtype: peer_of(threads, dtype=dtype) for dtype in dtypes}
    for venv, module in others.items():
        command: list[str | Path] = [python_of(venv), "-m", f"benchmarks.peers.{module}", model, str(threads)]
        loading[venv] = Peer([*command, options.folder], threads=threads)
    with ExitStack() as cleanup:
        yield {name: cleanup.enter_context(peer) for name, peer in loading.items()}


def settled(side: Side, peer: Peer, file: str) -> dict[str, Any]:
    """The arguments of a run; a tuned side gets the batch size of its fastest of two runs each, in turns."""
    if side.batches == "own":
        return {"file": file}
    if side.batches == "tuned" and (side.peer, file) not in TUNED:
        took = [{each: peer.run("embed", 0.0, file=file, batch_size=each)["seconds"] for each in SIZES} for _ in "ab"]
        TUNED[side.peer, file] = min(SIZES, key=lambda each: min(turn[each] for turn in took))
    return {"file": file, "batch_size": TUNED[side.peer, file] if side.batches == "tuned" else DEFAULT}


def lowest_cosines(running: Mapping[str, Peer], asked: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of each side's rows with the exact ones. Raises AssertionError for a side that gives something else."""
    rows = {name: running[side.peer].outcome("embed", **asked[name]) for name, side in sides().items()}
    for name, each in rows.items():
        difference = float(np.abs(each - rows[EXACT]).max())
        assert difference < SIDES[name].differs, f"{name} differs by {difference}"
    return {name: float((each * rows[EXACT]).sum(axis=1).min()) for name, each in rows.items()}


def turn(peer: Peer, tokens: int, asked: Mapping[str, Any], cosine: float) -> Figures:
    """Embeds a mix; what it was asked for is told beside."""
    rate = {"tokens/s": tokens / peer.run("embed", **asked)["seconds"], "lowest cosine": cosine}
    return rate | ({"batch size": float(str(asked["batch_size"]))} if "batch_size" in asked else {})


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """All sides on all mixes, and products alone in each number format."""
    there = sides()
    dtypes = [each for each in ("float32", "bfloat16") if each in {side.peer for side in there.values()}]
    with peers(options, dtypes) as running:
        alone = {ALONE if each == "float32" else f"{ALONE}, {each}": products(running[each]) for each in dtypes}
        found: dict[str, dict[str, Turn]] = {}
        for mix, lengths in MIXES.items():
            file = write_texts(token_ids(lengths), options.folder / f"{mix}.npz")
            asked = {name: settled(side, running[side.peer], file) for name, side in there.items()}
            cosines = lowest_cosines(running, asked)
            timed: dict[str, Turn] = {
                name: partial(turn, running[side.peer], sum(lengths), asked[name], cosines[name])
                for name, side in there.items()
            }
            found[f"{len(lengths)} texts, {mix}"] = timed | alone
        yield found
