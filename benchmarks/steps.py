"""The engine embeds the same texts in steps of at most 1,024 to 8,192 tokens, and of what the worker chooses at load.

One job of texts with lognormal lengths and MiniLM's real weights, by number format, each in a process of its own. Steps
are not bounded in time here. Tokens by CPU second count all threads; other work of a busy machine changes them less. A
format is there only where the processor makes such products.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.benchmark import Options
from benchmarks.engine import peer_of
from benchmarks.our_kernels import has_int8
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import lognormal, token_ids

OUR_SIDE, RATE, COMPARED = "as chosen at load", "tokens/s", ("tokens/s", "tokens/CPU s")
PEERS: Mapping[str, tuple[str, ...]] = {}
STEPS, TEXTS = (1024, 2048, 4096, 8192), 256
"""Most tokens of a step by side, and how many texts: some 32,000 tokens, or four of the largest steps."""


def formats() -> list[str]:
    """Selects the number formats whose products this processor makes."""
    able = {"float32": True, "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(), "int8": has_int8()}
    return [name for name, runs in able.items() if runs]


def turn(peer: Peer, tokens: int, arguments: Mapping[str, Any]) -> Figures:
    """Embeds the texts. Reports the most tokens of a step, and its milliseconds at the mean speed."""
    times, step = peer.run("embed", **arguments), arguments["step_tokens"]
    rates = {"tokens/s": tokens / times["seconds"], "tokens/CPU s": tokens / times["cpu_seconds"]}
    return {**rates, "tokens a step": step, "ms a step": 1e3 * step * times["seconds"] / tokens}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts an engine for each format; yields their turns by the tokens of a step."""
    lengths = lognormal(TEXTS)
    file = write_texts(token_ids(lengths), options.folder / "texts.npz")
    with ExitStack() as cleanup:
        loading = {name: peer_of(options.threads, dtype=name) for name in formats()}
        running = {name: cleanup.enter_context(peer) for name, peer in loading.items()}
        cases: dict[str, dict[str, Turn]] = {}
        for name, peer in running.items():
            sides = {OUR_SIDE: int(peer.outcome("step tokens"))} | {f"{step:,} tokens": step for step in STEPS}
            cases[f"{TEXTS} texts, lognormal, {name}"] = {
                side: partial(turn, peer, sum(lengths), {"file": file, "step_tokens": step})
                for side, step in sides.items()
            }
        yield cases
