"""One short text through `selvage.Engine`, in a process that may also use PyTorch in other ways.

Arguments: a situation, threads, and the spins of waiting threads, 0 where PyTorch was imported before selvage,
so that libgomp's own default holds. selvage is imported after the environment is set, since libgomp reads it once.
"""

import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from benchmarks.peers.answering import answer
from benchmarks.workloads import MINILM, WORDS, minilm_folder, text

TOKENS, OTHERS = 16, 32
"""Tokens of the text that is timed, and how many texts of 64 words another user of PyTorch embeds at a time."""


def forever(work: Callable[[], object]) -> None:
    """Repeats the work in a thread of its own until the process ends."""

    def run() -> None:
        while True:
            work()

    threading.Thread(target=run, daemon=True).start()


def situation(name: str, threads: int) -> Callable[[], Any]:
    """Loads an engine and what is beside it, and gives the work that is timed."""
    from selvage import Engine

    engine = Engine(MINILM, threads=threads)
    several = [" ".join(random.Random(number).choices(WORDS, k=64)) for number in range(OTHERS)]
    if "engine" in name:
        other = Engine(MINILM, threads=threads)
        other.embed(several)
        if "busy" in name:
            forever(lambda: other.embed(several))
    elif "sentence-transformers" in name:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)
        model.encode(several)
        if "busy" in name:
            forever(lambda: model.encode(several))
    short = [text(MINILM, TOKENS, random.Random(1))]
    return lambda: engine.embed(short)


if __name__ == "__main__":
    if int(sys.argv[3]):
        os.environ["GOMP_SPINCOUNT"] = sys.argv[3]
    else:
        del os.environ["GOMP_SPINCOUNT"]
        import torch  # noqa: F401
    work = situation(sys.argv[1], int(sys.argv[2]))
    answer(lambda: {"embed": lambda: work})
    os._exit(0)  # threads that are busy forever would hold the engines' end up
