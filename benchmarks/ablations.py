"""Ideas on and off in one process: packing, linear layers, attention. Those that decide something today.

packing     texts end to end, against every text filled up to the longest of its step. The filled ones run as though all
            their tokens were real, so no mask is made: that flatters padding.
linear      weights packed once for oneDNN with GELU fused, against PyTorch's own layers
attention   each way in which a processor can attend for all lengths, against what the load chose
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from benchmarks import ours
from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import MAX_TOKENS, MINILM, MIXES, token_ids

WHOSE, RATE, COMPARED, finished = OURS, "tokens/s", ("tokens/s",), as_found
PEERS: Mapping[str, tuple[str, ...]] = {}
BUDGET = 2048
"""Real tokens of a step, as the worker has them on a processor."""


def turn(run: Callable[[], object], tokens: int) -> Figures:
    """One run, of tenths of a second."""
    start = time.perf_counter()
    run()
    return {"tokens/s": tokens / (time.perf_counter() - start)}


def filled(lengths: Sequence[int]) -> list[int]:
    """Every text as long as the longest of its step, for texts in this order."""
    steps: list[list[int]] = []
    for length in lengths:
        if not steps or sum(steps[-1]) + length > BUDGET:
            steps.append([])
        steps[-1].append(length)
    return [max(step) for step in steps for _ in step]


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """All ideas with MiniLM in float32; each engine has the load's own choices but for one."""
    torch.set_num_threads(options.threads)
    engine = ours.Ours(MINILM, max_tokens=MAX_TOKENS)
    others = {"PyTorch's linear layers": ours.Ours(MINILM, max_tokens=MAX_TOKENS, stock_linear=True)}
    for way in ours.WAYS:
        others[f"attention by {way}"] = ours.Ours(MINILM, max_tokens=MAX_TOKENS, attention=way)
    bimodal = np.random.default_rng(1).permutation([512 if number % 8 == 7 else 32 for number in range(64)])
    found: dict[str, dict[str, Turn]] = {}
    for name, lengths in {**MIXES, "32 and 512 tokens": tuple(bimodal.tolist())}.items():
        texts, tokens = token_ids(lengths), sum(lengths)
        sides = {OURS: partial(engine.embed, texts)}
        sides |= {side: partial(other.embed, texts) for side, other in others.items()}
        if len(set(lengths)) > 1:
            sides["padded, as texts come"] = partial(engine.embed, token_ids(filled(lengths)))
            sides["padded, by length"] = partial(engine.embed, token_ids(filled(sorted(lengths))))
        found[name] = {side: partial(turn, run, tokens) for side, run in sides.items()}
    yield found
