"""What `--same-bits` costs: the engine with and without it, in each number format of this processor.

Ours over "same bits" is the cost: 1.05 means that it takes a twentieth of the speed. MiniLM's layers run whole by the
processor's kernels on both sides; those of the other model run as transformers wrote them.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product

from benchmarks.benchmark import OURS, Options
from benchmarks.engine import turn
from benchmarks.our_kernels import formats
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.rounds import Turn
from benchmarks.workloads import MAX_TOKENS, MINILM, lognormal, token_ids

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("tokens/s",)
PEERS: Mapping[str, tuple[str, ...]] = {}
MODELS = {"MiniLM": MINILM, "ModernBERT-base": "random:modernbert-base"}
TEXTS = {"one text of 16 tokens": (16,), "16 texts, lognormal": lognormal(16)}
SAME_BITS = "same bits"


def peer_of(options: Options, model: str, number_format: str, *setting: str) -> Peer:
    """Starts an engine in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers.selvage_peer", model, number_format, str(MAX_TOKENS), *setting]
    return Peer(command, threads=options.threads)


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts both engines of every model and format; yields their turns."""
    with ExitStack() as cleanup:
        cases = dict[str, dict[str, Turn]]()
        for (name, model), number_format in product(MODELS.items(), formats()):
            sides = {OURS: (), SAME_BITS: ("same-bits",)}
            peers = {
                side: cleanup.enter_context(peer_of(options, model, number_format, *setting))
                for side, setting in sides.items()
            }
            for title, lengths in TEXTS.items():
                # Ids that both vocabularies have.
                file = write_texts(token_ids(lengths, vocabulary=1000), options.folder / f"{len(lengths)}.npz")
                cases[f"{name}, {number_format}, {title}"] = {
                    side: partial(turn, peer, "embed", len(lengths), sum(lengths), {"file": file, "jobs": 1})
                    for side, peer in peers.items()
                }
        yield cases
