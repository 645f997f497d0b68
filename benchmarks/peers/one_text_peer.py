"""One text through `selvage.Engine` in a number format. Arguments: the format, threads."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.peers.answering import Make, answer
from benchmarks.workloads import MAX_TOKENS, MINILM, text
from selvage import Engine


def sides(dtype: Any, threads: int) -> Mapping[str, Make]:
    """Loads the engine. `embed`: a text of so many `tokens`."""
    engine = Engine(MINILM, dtype=dtype, threads=threads, max_tokens=MAX_TOKENS)

    def embed(tokens: int) -> Callable[[], Any]:
        texts = [text(MINILM, tokens, random.Random(1))]
        return lambda: engine.embed(texts)

    return {"embed": embed}


if __name__ == "__main__":
    answer(lambda: sides(sys.argv[1], int(sys.argv[2])))
