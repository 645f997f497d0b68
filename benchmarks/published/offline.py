"""Embeds one text at a time in the process that has the model, without a server, and prints seconds as a line of JSON.

It reads a line of JSON: `{"engine": "selvage", "model": ..., "dtype": ..., "max_tokens": ..., "threads": ..., "texts":
[...], "seconds": ...}`, or engine "vLLM", which needs the interpreter of its venv. It imports nothing of the
benchmarks, which that interpreter does not have.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

WARM_UP = 5
"""Texts before anything counts."""


def selvage(wanted: dict[str, Any]) -> Callable[[str], object]:
    """Opens our engine; gives what embeds a text."""
    from selvage import Engine

    options = {name: wanted[name] for name in ("dtype", "max_tokens", "threads")}
    engine = Engine(wanted["model"], device="cpu", **options)
    return lambda text: engine.embed([text])


def vllm(wanted: dict[str, Any]) -> Callable[[str], object]:
    """Opens vLLM's engine; gives what embeds a text."""
    from vllm import LLM  # type: ignore[import-not-found, unused-ignore]

    engine = LLM(
        model=wanted["model"], runner="pooling", dtype=wanted["dtype"], max_model_len=wanted["max_tokens"], seed=0
    )
    return lambda text: engine.embed([text], use_tqdm=False)


ENGINES = {"selvage": selvage, "vLLM": vllm}


def main() -> int:
    """Embeds the texts in turn for some seconds."""
    wanted = json.loads(sys.stdin.readline())
    embed = ENGINES[wanted["engine"]](wanted)
    texts = cycle(wanted["texts"])
    for _ in range(WARM_UP):
        embed(next(texts))
    taken: list[float] = []
    stop = time.perf_counter() + wanted["seconds"]
    while (start := time.perf_counter()) < stop:
        embed(next(texts))
        taken.append(time.perf_counter() - start)
    print(json.dumps({"seconds": taken}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
