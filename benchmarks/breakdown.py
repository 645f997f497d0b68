"""Where the time of a request goes: `python -m benchmarks.breakdown`.

Both services with MiniLM, for one client and for saturation. Replies tell their own times; what is left of a client's
latency is the client's, the wire's and the frontend's rpc. How much of that is the client and the wire alone is told by
a null server with replies of the same size: one client asks it in a closed loop, for many it is asked as often as
the services answered, since a closed loop would fill it up and measure its own queue.

Where cores are saturated, the CPU seconds of both services are held against those of the engine alone, on the same
texts in a process of its own, before and after. Threads of torch that spin while they wait count on both sides.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import lengths, tables
from benchmarks.engine_alone import EngineAlone, Spent, engine_alone
from benchmarks.load.generator import LoadFailed, generate
from benchmarks.load.null_server import null_server
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed, Open
from benchmarks.load.plan import Plan, Prepared
from benchmarks.load.target import EMBED, PARTS, RERANK, GrpcAddress
from benchmarks.machine import describe
from benchmarks.texts import Vocabulary
from harness.running import run
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2

RESULT = Path(__file__).parent / "results" / "breakdown-cpu.json"
MODEL, MAX_TOKENS = "minilm", 512
GOAL = 0.10
"""Of the engine's CPU seconds, what both services may add."""
QUERY = 32
"""Tokens of a rerank's query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Requests and how many clients send them.

    `texts`: all that is embedded, where cores are saturated by it. `waves`: where a request takes seconds and many
    share the worker, so many of each client instead of a time, at whose end work done on all would be left uncounted.
    """

    name: str
    clients: int
    requests: tuple[Prepared, ...]
    method: str = EMBED
    texts: tuple[str, ...] = ()
    waves: int = 0

    @classmethod
    def embedding(
        cls, name: str, clients: int, counts: Sequence[Sequence[int]], seed: int, full: bool = False
    ) -> "Case":
        """Requests with texts of these numbers of tokens each; `full`: they saturate the cores."""
        draw, words = random.Random(seed), Vocabulary.of(MODEL)
        texts = [[words.text(count, draw) for count in each] for each in counts]
        requests = tuple(
            Prepared(body=embedding_pb2.EmbedRequest(texts=own).SerializeToString(), tokens=sum(each))
            for own, each in zip(texts, counts, strict=True)
        )
        every = tuple(text for own in texts for text in own) if full else ()
        return cls(name=name, clients=clients, requests=requests, texts=every)

    @classmethod
    def rerank(cls, name: str, documents: int, tokens: int, seed: int) -> "Case":
        """One client, late interaction."""
        draw, words = random.Random(seed), Vocabulary.of(MODEL)
        message = ranking_pb2.RerankRequest(
            query=words.side(QUERY, draw),
            documents=[words.side(tokens, draw) for _ in range(documents)],
            method=vectors_pb2.SCORING_METHOD_LATE_INTERACTION,
        )
        request = Prepared(body=message.SerializeToString(), tokens=QUERY + documents * tokens)
        return cls(name=name, clients=1, requests=(request,), method=RERANK)

    def plan(self, pair: Stack, seconds: float, seed: int) -> Plan:
        """For a closed loop; each reply's own times are kept."""
        length: dict[str, Any] = {"requests": self.waves * self.clients} if self.waves else {"seconds": seconds}
        return Plan(
            address=GrpcAddress(servers=(pair.frontends[0].address,), method=self.method),
            requests=self.requests,
            pattern=Closed(clients=self.clients, **length),
            warmup=min(1.0, seconds),
            seed=seed,
            times=True,
        )


def cases(seed: int) -> list[Case]:
    """One request at a time, and saturation by many clients and by big requests."""
    mixed = lengths.lognormal(16 * 32, seed).tolist()
    batches = [mixed[start : start + 32] for start in range(0, len(mixed), 32)]
    embedding = Case.embedding
    return [
        embedding("1 client, 16 tokens", 1, [[16]] * 64, seed),
        embedding("1 client, 128 tokens", 1, [[128]] * 64, seed),
        embedding("1 client, 32 texts x 128 tokens", 1, [[128] * 32] * 4, seed),
        Case.rerank("1 client, rerank of 100 documents x 128 tokens", 100, 128, seed),
        embedding("64 clients, 16 tokens", 64, [[16]] * 256, seed, full=True),
        embedding("64 clients, 128 tokens", 64, [[128]] * 256, seed, full=True),
        embedding("64 clients, lognormal", 64, [[count] for count in mixed[:256]], seed, full=True),
        replace(embedding("16 clients, 32 texts x lognormal", 16, batches, seed, full=True), waves=3),
    ]


def parts_of(times: Sequence[Sequence[float]], bare: float) -> dict[str, dict[str, float]]:
    """Milliseconds by part, of answers as a tally keeps them: latency, then `PARTS`, all in seconds.

    `bare`: seconds that client and wire take without our services; what is beyond is the frontend's rpc. It is one
    number, so only the median is divided.
    """
    columns = np.array(times).T
    outside = columns[0] - columns[1:].sum(axis=0)
    named = {"client and wire": outside, **dict(zip(PARTS, columns[1:], strict=True)), "total": columns[0]}
    found = {name: _milliseconds(column) for name, column in named.items()}
    found["client and wire"] |= {
        "bare": round(bare * 1e3, 3),
        "rpc of the frontend": round(found["client and wire"]["median"] - bare * 1e3, 3),
    }
    return found


def _milliseconds(column: Any) -> dict[str, float]:
    figures = {"median": np.median(column), "p99": np.quantile(column, 0.99), "mean": column.mean()}
    return {name: round(float(value) * 1e3, 3) for name, value in figures.items()}


def processor_time(outcomes: Sequence[Outcome], alone: Sequence[Spent]) -> dict[str, Any]:
    """CPU seconds a million tokens on both sides, and what the services add to the engine's, medians of the rounds.

    The engine is in the worker: its share of what is added is what the worker takes beyond the engine alone. Shares
    are each round's own: on a shared machine a CPU second does more in one minute than in another.
    """
    rounds = [
        {"engine alone": spent.cpu_seconds / spent.tokens * 1e6}
        | {name: _per_million(outcome, kind) for name, kind in (("frontend", "frontend"), ("worker", "worker"))}
        for outcome, spent in zip(outcomes, alone, strict=True)
    ]
    typical = {name: median(each[name] for each in rounds) for name in rounds[0]}
    frontend, worker = ([each[name] / each["engine alone"] for each in rounds] for name in ("frontend", "worker"))
    return {
        "cpu_seconds_per_million_tokens": {name: round(value, 2) for name, value in typical.items()},
        "added": round(median(map(sum, zip(frontend, worker, strict=True))) - 1, 4),
        "added_by_frontend": round(median(frontend), 4),
        "added_by_worker": round(median(worker) - 1, 4),
        "goal": GOAL,
        "engine_alone_tokens_per_second": round(median(spent.tokens / spent.seconds for spent in alone)),
        "rounds": [{name: round(value, 2) for name, value in each.items()} for each in rounds],
    }


def _per_million(outcome: Outcome, process: str) -> float:
    """Rates by rates: CPU seconds are of the window, tokens of the span between answers."""
    return outcome.cpu_seconds[process] / outcome.window / (outcome.total_tokens / outcome.seconds) * 1e6


async def bare_seconds(plan: Plan, outcome: Outcome, seconds: float) -> float:
    """The median latency of a null server with replies of the same size; see above."""
    assert isinstance(plan.pattern, Closed)
    many = plan.pattern.clients > 1
    pattern = Open(rate=outcome.requests_per_second, seconds=seconds) if many else Closed(clients=1, seconds=seconds)
    async with null_server(plan.address, outcome.mean_reply_bytes) as (address, _):
        null = replace(plan, address=address, pattern=pattern, learn=False, warmup=min(0.5, seconds), times=False)
        answered = await generate(null)
    return float(answered.figures()["latency_ms"]["p50"]) / 1e3


async def run_round(
    case: Case, pair: Stack, engine: EngineAlone, seconds: float, seed: int, title: str, learn: bool
) -> tuple[Outcome, Spent | None]:
    """The services, and where cores are saturated the engine alone before and after them.

    Raises LoadFailed without an answer.
    """
    watch = {"worker": pair.worker.pid, "frontend": pair.frontends[0].pid}
    alone = min(seconds, 4.0) / 2
    before = await engine.embed(case.texts, alone) if case.texts else None
    outcome = await generate(replace(case.plan(pair, seconds, seed), learn=learn), watch=watch, title=title)
    if not outcome.requests:
        raise LoadFailed(f"{case.name}: no answer in its time; give more --seconds")
    return outcome, before + await engine.embed(case.texts, alone) if before else None


async def measure(chosen: Sequence[Case], *, seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """All cases in turn, `rounds` times."""
    runs: dict[str, list[tuple[Outcome, Spent | None]]] = {case.name: [] for case in chosen}
    bare: dict[str, float] = {}
    async with engine_alone(MODEL, MAX_TOKENS) as engine, stack(MODEL, worker={"max-tokens": MAX_TOKENS}) as pair:
        for turn in range(rounds):
            for case in chosen:
                title = f"{case.name}, round {turn + 1} of {rounds}"
                run = await run_round(case, pair, engine, seconds, seed, title, learn=not turn)
                runs[case.name].append(run)
        for case in chosen:
            middle = sorted((run[0] for run in runs[case.name]), key=lambda each: each.requests_per_second)[rounds // 2]
            bare[case.name] = await bare_seconds(case.plan(pair, seconds, seed), middle, min(seconds, 3.0))
    return {
        "benchmark": "breakdown-cpu",
        "model": MODEL,
        "seed": seed,
        "rounds": rounds,
        "seconds": seconds,
        "machine": describe(),
        "cases": {case.name: figures(case, runs[case.name], bare[case.name]) for case in chosen},
    }


def figures(case: Case, runs: Sequence[tuple[Outcome, Spent | None]], bare: float) -> dict[str, Any]:
    """Of one case, for JSON."""
    outcomes, alone = [outcome for outcome, _ in runs], [spent for _, spent in runs if spent is not None]
    times = [each for outcome in outcomes for each in outcome.tally.times]
    rates = [outcome.requests_per_second for outcome in outcomes]
    told: Mapping[str, Any] = {
        "clients": case.clients,
        "answers": len(times),
        "errors": sum(sum(outcome.tally.errors.values()) for outcome in outcomes),
        "requests_per_second": round(median(rates), 2),
        "tokens_per_second": round(median(outcome.total_tokens / outcome.seconds for outcome in outcomes)),
        "milliseconds": parts_of(times, bare),
    }
    return {**told, **({"processor_time": processor_time(outcomes, alone)} if alone else {})}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.breakdown", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seconds", type=float, default=10.0, help="of each case but the last in each round (default: %(default)s)")
    add("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    add("--only", default="", help="cases whose name begins so (default: all)")
    add("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    given = parser.parse_args()
    wanted = [case for case in cases(given.seed) if case.name.startswith(given.only)]
    if not wanted:
        parser.error(f"no case begins with {given.only!r}")
    result = run(measure(wanted, seconds=given.seconds, rounds=given.rounds, seed=given.seed))
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    Console().print(Markdown(tables.breakdown(result)))
