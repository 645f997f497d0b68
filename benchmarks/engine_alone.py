"""The worker's engine with its own planning, without services; `python -m benchmarks.engine_alone` for a process of it.

The process takes lines of JSON, `{"texts": [...], "seconds": 4}`, embeds all texts as one job until the seconds are
over, once at least, and answers each line with what that took. It ends with its standard input.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from benchmarks.mixes import Texts
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.step.flight import Part
from gpu_worker.model.loading import Model, load
from gpu_worker.planning import FairQueue
from harness.environment import ROOT, python_path
from shared.jobs import Encode, Job
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind

Rows = npt.NDArray[np.float32]


def ours(model: Model) -> Callable[[Texts, int], Rows]:
    """The worker's engine with its own planning, without services."""
    engine, budget = ModelEngine(model), model.placement.step_tokens
    work = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)

    def embed(texts: Texts, _: int) -> Rows:
        tokens = RaggedTokens(ids=b"".join(text.tobytes() for text in texts), lengths=tuple(map(len, texts)))
        progress = engine.open(Job(id=1, work=work, tokens=tokens))
        queue = FairQueue(quantum=budget // 8)
        queue.add(1, progress.costs)
        while len(queue):
            share = queue.next_step(budget)[0]
            engine.step([Part(progress=progress, start=share.start, stop=share.stop)])
        result = progress.result()
        assert result.dense is not None
        return np.frombuffer(result.dense.data, dtype=np.float32).reshape(len(texts), -1)

    return embed


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """`cpu_seconds`: user and system, of all threads of the process, those that only wait for each other included."""

    tokens: int
    seconds: float
    cpu_seconds: float

    def __add__(self, other: "Spent") -> "Spent":
        """Of both."""
        return Spent(
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
        )


class EngineAlone:
    """The process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def embed(self, texts: Sequence[str], seconds: float) -> Spent:
        """Passes over all texts for that long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"texts": texts, "seconds": seconds}).encode() + b"\n")
        await self._process.stdin.drain()
        return Spent(**json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def engine_alone(model: str, max_tokens: int) -> AsyncIterator[EngineAlone]:
    """The engine of a model in a process of its own, ended at the end; its threads, how they wait, and its dtype are a
    worker's by default."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.engine_alone", model, str(max_tokens)),
        cwd=ROOT,
        env={"GOMP_SPINCOUNT": "10000"} | os.environ | {"PYTHONPATH": python_path()},  # as the worker's
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    try:
        yield EngineAlone(process)
    finally:
        process.stdin.close()
        await process.wait()


def timed(embed: Callable[[Texts, int], Rows], texts: Texts, seconds: float) -> Spent:
    """Passes over all texts until the seconds are over, one at least."""
    passes, start, before = 0, time.perf_counter(), _cpu_seconds()
    while not passes or time.perf_counter() - start < seconds:
        embed(texts, 0)
        passes += 1
    spent, took = _cpu_seconds() - before, time.perf_counter() - start
    return Spent(tokens=passes * sum(map(len, texts)), seconds=took, cpu_seconds=spent)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(name: str, max_tokens: int) -> None:
    """Until standard input ends."""
    model = load(name, Placement.choose("auto", "auto"), max_tokens=max_tokens)
    reader = Tokenizer.from_buffer(model.tokenizer.content)
    reader.no_truncation()
    reader.no_padding()
    embed = ours(model)
    for line in sys.stdin:
        asked = json.loads(line)
        texts = [np.array(read.ids, dtype=np.int32) for read in reader.encode_batch(asked["texts"])]
        embed(texts[:64], 0)  # first-time work
        print(json.dumps(asdict(timed(embed, texts, asked["seconds"]))), flush=True)


if __name__ == "__main__":
    keep_freed_memory()  # as the worker does
    serve(sys.argv[1], int(sys.argv[2]))
