"""Texts that begin alike, each computed by itself and sharing their first tokens: Qwen3-Embedding-0.6B's shape.

The published prompts (three words repeated 8 to 192 times, so that the shorter ones begin the longer ones), whole and
in pieces; a reranker's prompt and query before 64 documents; an instruction before 64 short queries; and 64 texts that
have nothing in common, which tells what it costs to look. One job each, in bfloat16 where the processor makes such
products. The vectors of both sides are compared before anything is timed.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.benchmark import Options
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import PROMPTS, Ids, token_ids

OUR_SIDE, RATE, COMPARED = "shared", "tokens/s", ("tokens/s",)
PEERS: Mapping[str, tuple[str, ...]] = {}
MODEL, LONGEST, VOCABULARY = "random:qwen3-embedding-0.6b", 2048, 1000
SIDES = {OUR_SIDE: True, "each by itself": False}
TEXTS = 64
LEAST_COSINE = 0.999
"""Least cosine of the vectors of both sides."""


def begun(beginning: Ids, lengths: list[int]) -> list[Ids]:
    """Texts that begin alike and go on with so many tokens of their own."""
    return [np.concatenate([beginning, rest]) for rest in token_ids(tuple(lengths), seed=2, vocabulary=VOCABULARY)]


def workloads() -> dict[str, tuple[list[Ids], int, int]]:
    """The texts of each case, the most tokens of a piece (0: whole texts) and of a step."""
    words, prompt, instruction, end = token_ids((3, 80, 24, 1), vocabulary=VOCABULARY)
    prompts = [np.concatenate([np.tile(words, count), end]) for count in PROMPTS]
    lengths = np.random.default_rng(3)
    documents = begun(prompt, lengths.integers(60, 180, TEXTS).tolist())
    queries = begun(instruction, lengths.integers(6, 24, TEXTS).tolist())
    others = token_ids(tuple(lengths.integers(20, 60, TEXTS).tolist()), seed=4, vocabulary=VOCABULARY)
    return {
        "published prompts, whole": (prompts, 0, 2048),
        "published prompts, pieces of 128, steps of 512": (prompts, 128, 512),
        f"prompt and query before {TEXTS} documents": (documents, 0, 2048),
        f"instruction before {TEXTS} queries": (queries, 0, 2048),
        f"{TEXTS} texts with nothing in common": (others, 0, 2048),
    }


def turn(peer: Peer, tokens: int, arguments: Mapping[str, Any]) -> Figures:
    """Embeds the texts."""
    return {"tokens/s": tokens / peer.run("embed", **arguments)["seconds"]}


def check(peer: Peer, arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Exits where the vectors of both sides differ."""
    first, second = (torch.from_numpy(peer.outcome("embed", **arguments[side])) for side in SIDES)
    least = float(torch.nn.functional.cosine_similarity(first, second).min())
    if least < LEAST_COSINE:
        sys.exit(f"a vector has the cosine {least:.5f} to that of the text by itself")


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts the engine; yields the turns of both sides."""
    number_format = "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
    command = [sys.executable, "-m", "benchmarks.peers.selvage_peer", MODEL, number_format, str(LONGEST)]
    with Peer(command, threads=options.threads) as peer:
        cases = dict[str, dict[str, Turn]]()
        for number, (name, (texts, chunk, step)) in enumerate(workloads().items()):
            file = write_texts(texts, options.folder / f"{number}.npz")
            arguments = {
                side: {"file": file, "chunk_tokens": chunk, "step_tokens": step, "shares": shares}
                for side, shares in SIDES.items()
            }
            check(peer, arguments)
            tokens = sum(map(len, texts))
            cases[f"{name}, {number_format}"] = {side: partial(turn, peer, tokens, arguments[side]) for side in SIDES}
        yield cases
