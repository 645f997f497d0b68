"""A big rerank by late interaction: which share of its steps scoring takes, and how much memory the worker takes.

The share is timed inside the engine's steps, on MiniLM's real weights and on its shape as a ColBERT model. Memory is
that of a worker process with MiniLM: one rerank of 10,000 documents of 16 tokens, then three at once, against the same
process idle.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from benchmarks.machine import describe
from benchmarks.texts import Vocabulary
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.step.flight import Part
from gpu_worker.model.loading import load
from gpu_worker.planning import FairQueue
from gpu_worker.step.outputs import Rows
from harness.running import run
from harness.stack import stack
from selvage.v1 import ranking_pb2, ranking_pb2_grpc, vectors_pb2
from shared.jobs import Job, Score
from shared.ragged import RaggedTokens
from shared.vectors import Layout, ScoringMethod

RESULT = Path(__file__).parent / "results" / "rerank-cpu.json"
SKIPPING = "random:minilm-colbert"
"""MiniLM's shape with a projection to 128 and a skiplist: a seventh of its tokens is skipped here."""
CASES = (("minilm", 1000, 256, 32), ("minilm", 10_000, 16, 32), (SKIPPING, 1000, 128, 32), (SKIPPING, 10_000, 16, 32))
"""Model, documents, tokens of each, tokens of the query."""
MEBIBYTE = 1024 * 1024


class Spent:
    """Seconds inside steps, and those of them inside scoring: joining queries, masks, products, maxima, sums."""

    def __init__(self) -> None:
        self.scoring = self.steps = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times `Rows.compare` and `Rows.launch`, which are all that a step does for late interaction."""
        own = {name: getattr(Rows, name) for name in ("compare", "launch")}

        def timed(name: str) -> Any:
            def run(*arguments: Any) -> Any:
                if name == "launch":
                    arguments[0].every_token()  # the projection belongs to the encoder
                start = time.perf_counter()
                outcome = own[name](*arguments)
                self.scoring += time.perf_counter() - start
                return outcome

            return run

        try:
            for name in own:
                setattr(Rows, name, timed(name))
            yield
        finally:
            for name, method in own.items():
                setattr(Rows, name, method)


def share(name: str, documents: int, tokens: int, query: int) -> dict[str, Any]:
    """One rerank through the engine with its own planning."""
    model = load(name, Placement.choose("cpu", "float32"))
    engine = ModelEngine(model)
    generator = np.random.default_rng(1)
    least = 20 if name == SKIPPING else 1996  # there, some tokens of each text are on the skiplist
    texts = [generator.integers(least, 29_000, length) for length in [query, *[tokens] * documents]]
    if name == SKIPPING:
        texts = [np.where(np.arange(len(text)) % 7 == 3, 50, text) for text in texts]
    work = Score(method=ScoringMethod.LATE_INTERACTION, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    spent = Spent()
    progress = engine.open(Job(id=1, work=work, tokens=RaggedTokens.of([text.tolist() for text in texts])))
    budget = model.placement.step_tokens
    queue = FairQueue(quantum=budget // 8)
    queue.add(1, progress.costs)
    steps = 0
    with spent.watching():
        while len(queue):
            taken = queue.next_step(budget)[0]
            start = time.perf_counter()
            engine.step([Part(progress=progress, start=taken.start, stop=taken.stop)])
            spent.steps += time.perf_counter() - start
            steps += 1
    return {
        "model": model.name,
        "documents": documents,
        "tokens": tokens,
        "query_tokens": query,
        "steps": steps,
        "tokens_per_second": round((documents * tokens + query) / spent.steps),
        "step_seconds": round(spent.steps, 3),
        "scoring_seconds": round(spent.scoring, 4),
        "scoring_share": round(spent.scoring / spent.steps, 4),
    }


def status(pid: int, key: str) -> int:
    """Bytes, by Linux: VmRSS now, VmHWM at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def forget_peak(pid: int) -> None:
    """What loading took."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def memory(documents: int) -> dict[str, Any]:
    """Through both services, by a worker that has served before."""
    draw, words = random.Random(1), Vocabulary.of("minilm")
    request = ranking_pb2.RerankRequest(
        query="a quiet harbour",
        documents=[words.side(16, draw) for _ in range(documents)],
        method=vectors_pb2.SCORING_METHOD_LATE_INTERACTION,
        top_n=10,
    )
    async with stack() as pair:
        call = ranking_pb2_grpc.RankingServiceStub(pair.channel).Rerank
        warm = ranking_pb2.RerankRequest(query="boats", documents=request.documents[:64], method=request.method)
        await call(warm, timeout=60)
        idle, figures = status(pair.worker.pid, "VmRSS"), {}
        forget_peak(pair.worker.pid)
        for together in (1, 3):
            start = time.perf_counter()
            ended: list[float] = []

            async def rerank(begun: float = start, times: list[float] = ended) -> Any:
                reply = await call(request, timeout=600)
                times.append(time.perf_counter() - begun)
                return reply

            replies = await asyncio.gather(*(rerank() for _ in range(together)))
            assert all(list(each.results) == list(replies[0].results) for each in replies)
            figures[f"{together} at once"] = {
                "tokens": replies[0].usage.prompt_tokens,
                "seconds": [round(each, 2) for each in ended],
                "mebibytes_above_idle": round((status(pair.worker.pid, "VmHWM") - idle) / MEBIBYTE, 1),
            }
    return {"documents": documents, "idle_mebibytes": round(idle / MEBIBYTE, 1)} | figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerank", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of the engine (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    outcome = {
        "benchmark": "rerank-cpu",
        "threads": arguments.threads,
        "machine": describe(),
        "scoring": [share(*case) for case in track(CASES, description="scoring")],
        "memory": [run(memory(10_000))],
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps({key: outcome[key] for key in ("scoring", "memory")}, indent=1))
