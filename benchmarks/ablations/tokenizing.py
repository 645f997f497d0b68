"""(e) Tokenising and post-processing on the event loop, in a thread pool, and through a batching queue.

Clients are coroutines of this process: each sends one text after the other, short ones that the service tokenises on
the event loop, or long ones that it gives to its threads. A call is: tokenise, wait for a worker that answers at once,
finish token rows [64, 128] as int8. Beside them a watch sleeps two milliseconds at a time; by how much it oversleeps at
worst is the largest stall of the event loop.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import figures
from benchmarks.ablations.ablation import Ablation, Published
from benchmarks.ablations.conditions import Conditions
from benchmarks.ablations.frontends import Batches, Floats, Frontend, Inline, Threads, Work
from frontend_service.service import INLINE_LETTERS
from frontend_service.tokenization import Tokenization
from gpu_worker.device.placement import Placement
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load

THREADS, INLINE = "in a thread pool", "on the event loop"
QUEUE, TICK = "batching queue, no tick", "batching queue, 2 ms tick"
SHORT, LONG = 380, 2300
"""Letters of texts of about 80 and 500 tokens, which MiniLM cuts at 256."""
ROWS, WIDTH = 64, 128
NAP = 0.002
TEXTS = 64
TIME, P50, P99, STALL = "time", "call_p50", "call_p99", "largest_stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one variant did in its turn, in seconds; `time` a call, all clients together."""

    time: float
    calls: list[float]
    stall: float

    def figure(self, name: str) -> float:
        """One of time, call_p50, call_p99, largest_stall."""
        if name == TIME:
            return self.time
        if name == STALL:
            return self.stall
        return float(np.quantile(self.calls, 0.5 if name == P50 else 0.99))


def texts(words: str, seed: int, letters: int = SHORT) -> list[str]:
    """Texts of neighbouring words of `words`, which is repeated, each of about so many letters."""
    spread, generator = words.split(), np.random.default_rng(seed)
    several = spread * (2 * letters // max(1, len(words)) + 2)
    starts = generator.integers(0, len(spread), TEXTS)
    return [" ".join(several[start:])[:letters].rpartition(" ")[0] for start in starts.tolist()]


def words_of(model: str) -> str:
    """English for a trained tokenizer, its own words for a synthetic one."""
    if model.startswith("random:"):
        return " ".join(f"w{number}" for number in range(200))
    from demo.passages import PASSAGES

    return " ".join(PASSAGES)


def frontends(work: Work, threads: Executor) -> dict[str, Callable[[], Frontend]]:
    """By name; a new one a turn, as each turn has an event loop of its own."""
    return {
        THREADS: lambda: Threads(work, threads),
        INLINE: lambda: Inline(work),
        QUEUE: lambda: Batches(work, threads, 0.0),
        TICK: lambda: Batches(work, threads, 0.002),
    }


async def outcomes(frontend: Frontend, given: list[str], rows: Floats) -> list[tuple[list[int], bytes]]:
    """What the frontend makes of all texts at once."""

    async def call(text: str) -> tuple[list[int], bytes]:
        return await frontend.tokenize(text), await frontend.finish(rows)

    return list(await asyncio.gather(*map(call, given)))


async def turn(frontend: Frontend, given: list[str], rows: Floats, clients: int, calls: int) -> Turn:
    """`calls` calls by `clients` clients, each of which waits for its answer."""
    spent: list[float] = []
    left = iter(range(calls))

    async def client() -> None:
        for number in left:
            start = time.perf_counter()
            await frontend.tokenize(given[number % len(given)])
            await asyncio.sleep(0)  # a worker that answers at once
            await frontend.finish(rows)
            spent.append(time.perf_counter() - start)

    stalls = [0.0]

    async def watch() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(NAP)
            stalls.append(time.perf_counter() - start - NAP)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    elapsed = time.perf_counter() - start
    await asyncio.sleep(0)  # the watch sees how the last calls held it
    watching.cancel()
    return Turn(time=elapsed / calls, calls=spent, stall=max(stalls))


def at(clients: int, work: Work, given: list[str], conditions: Conditions, threads: Executor) -> dict[str, Any]:
    """All variants with so many clients; ours is what the service does with texts of that size."""
    ours = INLINE if max(map(len, given)) <= INLINE_LETTERS else THREADS
    rows = np.random.default_rng(conditions.seed).standard_normal((ROWS, WIDTH), dtype=np.float32)
    ways = frontends(work, threads)
    made = {ours: ways[ours], **ways}
    found = {name: asyncio.run(outcomes(make(), given, rows)) for name, make in made.items()}
    for name, outcome in found.items():
        assert outcome == found[ours], f"{name} gives something else than {ours}"
    calls = max(64 if conditions.quick else 256, (2 if conditions.quick else 16) * clients)
    turns: dict[str, list[Turn]] = {name: [] for name in made}
    for _ in range(conditions.rounds):
        for name, make in made.items():
            turns[name].append(asyncio.run(turn(make(), given, rows, clients, calls)))
    tokens = sum(len(ids) for ids, _ in found[ours])
    return {
        "case": f"{clients} client{'s' * (clients > 1)}, {round(tokens / len(given)):,} tokens",
        "given": {"clients": clients, "calls_a_turn": calls, "tokens_a_text": round(tokens / len(given))},
        "ours": ours,
        "rounds": conditions.rounds,
        "variants": {name: {"largest_difference": 0.0, "figures": _figures(each)} for name, each in turns.items()},
        "against": {
            name: {
                figure: figures.against(*([each.figure(figure) for each in turns[who]] for who in (ours, name)))
                for figure in (TIME, P50, P99, STALL)
            }
            for name in made
            if name != ours
        },
    }


def _figures(turns: list[Turn]) -> dict[str, Any]:
    rates = figures.spread([1 / each.time for each in turns], "count/second")
    times = {name: figures.seconds([each.figure(name) for each in turns]) for name in (TIME, P50, P99, STALL)}
    return times | {"calls_per_second": rates}


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    model = load(conditions.model, Placement(device=torch.device("cpu"), dtype=torch.float32))
    work = Work(tokenization=Tokenization(model.tokenizer.content, card_of(model)))
    words = words_of(conditions.model)
    short, long = (texts(words, conditions.seed, letters) for letters in (SHORT, LONG))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "text") as threads:  # as many as FrontendSettings has
        for clients in (1, 8, 32, 128):
            yield at(clients, work, short, conditions, threads)
        yield at(8, work, long, conditions, threads)


ABLATION = Ablation(
    letter="e",
    idea="tokenising and post-processing on the event loop, in threads, and through an asynchronous batching queue",
    how="clients in the process, a worker that answers at once: only what a frontend itself does is timed",
    measure=measure,
    published=(
        Published(
            who="vLLM", what="about 500 tokens a call, 1 client, accelerator", value=145_000, unit="tokens/second"
        ),
        Published(
            who="vLLM", what="about 500 tokens a call, 64 clients, accelerator", value=620_000, unit="tokens/second"
        ),
        Published(
            who="vLLM", what="online minus offline latency at one client, accelerator", value=1.4e-3, unit="seconds"
        ),
    ),
    devices=("cpu",),
)
