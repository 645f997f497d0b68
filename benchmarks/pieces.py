"""Long texts of Qwen3-Embedding-0.6B's shape, as a whole and in pieces: speed, and memory above idle.

Each side is a process of its own, in bfloat16 where the processor makes such products. The vectors of all sides are
compared with those of whole texts before anything is timed. What a short text waits beside long ones is measured
through the services, in `published --row short-beside-long`.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.benchmark import Options
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import token_ids

OUR_SIDE, RATE, COMPARED = "pieces of 256, steps of 2,048", "tokens/s", ("tokens/s", "MiB above idle")
PEERS: Mapping[str, tuple[str, ...]] = {}
MODEL, LONGEST, VOCABULARY = "random:qwen3-embedding-0.6b", 32_768, 1000
SIDES = {
    "whole": (0, 2048),
    OUR_SIDE: (256, 2048),
    "pieces of 256, steps of 256": (256, 256),
    "pieces of 128, steps of 512": (128, 512),
}
"""Most tokens of a piece (0: whole texts) and of a step, by side."""
CASES = {
    "2 texts of 4,096 tokens": ((4096, 4096), tuple(SIDES)),
    "one text of 32,768 tokens": ((LONGEST,), ("whole", OUR_SIDE)),  # some four minutes a side on two cores
}
QUICK = {"2 texts of 1,024 tokens": ((1024, 1024), tuple(SIDES))}
LEAST_COSINE = 0.9999
"""Least cosine of a side's vector to that of the whole text."""


def turn(peer: Peer, tokens: int, arguments: Mapping[str, Any]) -> Figures:
    """Embeds the texts. Reports the most memory that the process has meanwhile, above what it had before."""
    idle = float(peer.outcome("memory"))
    times = peer.run("embed", turn=0.0, **arguments)
    peak = float(peer.outcome("peak memory"))
    return {"tokens/s": tokens / times["seconds"], "MiB above idle": (peak - idle) / 2**20}


def check(peers: Mapping[str, Peer], arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Exits where the vectors of a side are not those of whole texts."""
    whole, *others = ((side, torch.from_numpy(peers[side].outcome("embed", **arguments[side]))) for side in SIDES)
    for side, rows in others:
        least = float(torch.nn.functional.cosine_similarity(whole[1], rows).min())
        if least < LEAST_COSINE:
            sys.exit(f"{side}: a vector has the cosine {least:.5f} to that of the whole text")


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts an engine for each side; yields their turns."""
    number_format = "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
    command = [sys.executable, "-m", "benchmarks.peers.selvage_peer", MODEL, number_format, str(LONGEST)]
    with ExitStack() as cleanup:
        peers = {side: cleanup.enter_context(Peer(command, threads=options.threads)) for side in SIDES}
        cases = dict[str, dict[str, Turn]]()
        for number, (name, (lengths, sides)) in enumerate((QUICK if options.quick else CASES).items()):
            file = write_texts(token_ids(lengths, vocabulary=VOCABULARY), options.folder / f"{number}.npz")
            arguments = {
                side: {"file": file, "chunk_tokens": chunk, "step_tokens": step}
                for side, (chunk, step) in SIDES.items()
            }
            if not number:
                check(peers, arguments)
            cases[f"{name}, {number_format}"] = {
                side: partial(turn, peers[side], sum(lengths), arguments[side]) for side in sides
            }
        yield cases
