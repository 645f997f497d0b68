"""The engine, sentence-transformers and ONNX Runtime embed the same token ids with MiniLM's real weights.

Every side is a process of its own and waits while others have their turn. Outputs are compared before anything is
timed; batch sizes of tuned sides are chosen for each mix of lengths. ONNX Runtime has a graph with fused attention. A
side in bfloat16 or int8 is there only where the processor makes such products: emulated ones take ten times as long.
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
from benchmarks.ours import has_int8
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, python_of
from benchmarks.rounds import ALONE, Figures, Turn
from benchmarks.workloads import MIXES, minilm_folder, token_ids

RATE, COMPARED = "tokens/s", ("tokens/s",)
PEERS = {"sentence-transformers": ("sentence-transformers", "torch"), "onnxruntime": ("onnxruntime",)}
SIZES, DEFAULT, TUNED = (2, 8, 32), 32, dict[tuple[str, str], int]()
"""Sizes of batches; the default size; the best sizes by peer and texts, which later starts use too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A side: its peer, and how it makes batches. `differs`: largest difference allowed in a unit vector."""

    peer: str
    batches: Literal["own", "default", "tuned"] = "own"
    differs: float = 1e-5


OUR_SIDE, EXACT = "selvage float32", "sentence-transformers default"
SIDES = {
    OUR_SIDE: Side(peer="float32"),
    "selvage bfloat16": Side(peer="bfloat16", differs=2e-2),
    "selvage int8": Side(peer="int8", differs=5e-2),
    EXACT: Side(peer="sentence-transformers", batches="default"),
    "sentence-transformers, best batch": Side(peer="sentence-transformers", batches="tuned"),
    "ONNX Runtime float32, best batch": Side(peer="onnxruntime", batches="tuned"),
}


def sides() -> dict[str, Side]:
    """Selects the sides that this processor can run."""
    able = {"bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(), "int8": has_int8()}
    return {name: side for name, side in SIDES.items() if able.get(side.peer, True)}


@contextmanager
def peers(options: Options, dtypes: Sequence[Any]) -> Iterator[dict[str, Peer]]:
    """Starts all processes at the same time; yields them loaded."""
    model, threads = minilm_folder(), options.threads
    others = {"sentence-transformers": "sentence_transformers_peer", "onnxruntime": "onnx_peer"}
    loading: dict[str, Peer] = {dtype: peer_of(threads, dtype=dtype) for dtype in dtypes}
    for venv, module in others.items():
        command: list[str | Path] = [python_of(venv), "-m", f"benchmarks.peers.{module}", model, str(threads)]
        loading[venv] = Peer([*command, options.folder], threads=threads)
    with ExitStack() as cleanup:
        yield {name: cleanup.enter_context(peer) for name, peer in loading.items()}


def settled(side: Side, peer: Peer, file: str) -> dict[str, Any]:
    """Gives the arguments of a side's runs. A tuned side gets its fastest batch size of two runs each, in turns."""
    if side.batches == "own":
        return {"file": file}
    if side.batches == "tuned" and (side.peer, file) not in TUNED:
        took = [{size: peer.run("embed", 0.0, file=file, batch_size=size)["seconds"] for size in SIZES} for _ in "ab"]
        TUNED[side.peer, file] = min(SIZES, key=lambda size: min(turn[size] for turn in took))
    return {"file": file, "batch_size": TUNED[side.peer, file] if side.batches == "tuned" else DEFAULT}


def lowest_cosines(running: Mapping[str, Peer], arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Computes the lowest cosine of each side's rows with the exact ones. Raises AssertionError for a wrong side."""
    rows = {name: running[side.peer].outcome("embed", **arguments[name]) for name, side in sides().items()}
    for name, side_rows in rows.items():
        difference = float(np.abs(side_rows - rows[EXACT]).max())
        assert difference < SIDES[name].differs, f"{name} differs by {difference}"
    return {name: float((side_rows * rows[EXACT]).sum(axis=1).min()) for name, side_rows in rows.items()}


def turn(peer: Peer, tokens: int, arguments: Mapping[str, Any], cosine: float) -> Figures:
    """Embeds a mix; reports its lowest cosine and its batch size too."""
    rate = {"tokens/s": tokens / peer.run("embed", **arguments)["seconds"], "lowest cosine": cosine}
    return rate | ({"batch size": float(str(arguments["batch_size"]))} if "batch_size" in arguments else {})


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all sides; yields their turns on all mixes, and products alone in each number format."""
    all_sides = sides()
    dtypes = [dtype for dtype in ("float32", "bfloat16", "int8") if dtype in {side.peer for side in all_sides.values()}]
    with peers(options, dtypes) as running:
        alone = {ALONE if dtype == "float32" else f"{ALONE}, {dtype}": products(running[dtype]) for dtype in dtypes}
        cases: dict[str, dict[str, Turn]] = {}
        for mix, lengths in MIXES.items():
            file = write_texts(token_ids(lengths), options.folder / f"{mix}.npz")
            arguments = {name: settled(side, running[side.peer], file) for name, side in all_sides.items()}
            cosines = lowest_cosines(running, arguments)
            timed: dict[str, Turn] = {
                name: partial(turn, running[side.peer], sum(lengths), arguments[name], cosines[name])
                for name, side in all_sides.items()
            }
            cases[f"{len(lengths)} texts, {mix}"] = timed | alone
        yield cases
