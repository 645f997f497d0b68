"""Both services against Infinity over HTTP: `python -m benchmarks.infinity`.

MiniLM in float32 on both sides, the same texts one a request, the same threads. All servers are up at once and take
turns in every round, so that a machine that slows down slows all alike; vectors are compared before anything is
timed. Infinity runs with --no-compile, as is recommended for a processor; --compiled adds it with --compile.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import minilm, tables
from benchmarks.load.case import Case, best, measured
from benchmarks.load.ceiling import ceiling_of
from benchmarks.load.generator import LoadFailed
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Plan
from benchmarks.load.summary import summary
from benchmarks.machine import describe
from benchmarks.peers.infinity import VENV, served
from benchmarks.servers import Infinity, Rows, Selvage, Side
from benchmarks.texts import Vocabulary
from harness.running import run
from harness.stack import stack

RESULT = Path(__file__).parent / "results" / "infinity-cpu.json"
OURS, PEER, COMPILED = "selvage", "Infinity", "Infinity, compiled"
PACKAGES = ("infinity-emb", "torch", "transformers", "sentence-transformers", "numpy", "tokenizers")
TEXTS = 256
"""Different texts of a load."""
COMPARED = 64
"""Those of each load whose vectors are compared."""
COMPILING = 600.0
"""Seconds that torch.compile may take before a server is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What ours over theirs should be, by the geometric mean of each round's own ratio."""

    figure: Literal["requests/s", "p50"]
    at_least: float = 0.0
    at_most: float = float("inf")

    def of(self, side: Mapping[str, Any]) -> float:
        """The figure in a summary, or in one of its rounds."""
        return float(side["requests_per_second"] if self.figure == "requests/s" else side["latency_ms"]["p50"])

    def judged(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The ratio of two summaries, by those of their rounds, and what is wanted."""
        rounds = [self.of(own) / self.of(their) for own, their in zip(ours["rounds"], theirs["rounds"], strict=True)]
        ratio = geometric_mean(rounds)
        return {
            "figure": self.figure,
            "ratio": round(ratio, 3),
            "rounds": [round(each, 3) for each in rounds],
            "goal": f">= {self.at_least:g}" if self.at_least else f"<= {self.at_most:.3g}",
            "met": self.at_least <= ratio <= self.at_most,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many clients that each send one text of so many tokens at a time."""

    clients: int
    tokens: int
    goal: Goal

    @property
    def name(self) -> str:
        """As it is shown."""
        return f"{self.clients} client{'s' * (self.clients > 1)}, {self.tokens} tokens"

    def texts(self, seed: int) -> list[str]:
        """Of that many tokens each, special ones included."""
        draw, words = random.Random(seed), Vocabulary.of("minilm")
        return [words.text(self.tokens, draw) for _ in range(TEXTS)]


LOADS = (
    Load(clients=64, tokens=128, goal=Goal(figure="requests/s", at_least=2.5)),
    Load(clients=64, tokens=16, goal=Goal(figure="requests/s", at_least=3)),
    Load(clients=1, tokens=16, goal=Goal(figure="p50", at_most=1 / 3)),
)


def agreement(ours: Rows, theirs: Rows) -> dict[str, Any]:
    """How close vectors of unit length are. Raises ValueError where they are not the same model's in float32."""
    lowest, largest = float((ours * theirs).sum(axis=1).min()), float(np.abs(ours - theirs).max())
    if not (lowest >= 0.99999 and largest <= 1e-5):  # so that nothing that is no number passes
        raise ValueError(f"vectors differ: lowest cosine {lowest:.6f}, largest difference {largest:.1e}")
    return {"texts": len(ours), "lowest_cosine": round(lowest, 6), "largest_difference": largest}


def plan_of(load: Load, side: Side, seconds: float, seed: int) -> Plan:
    """The load, sent to that side."""
    return Plan(
        address=side.address,
        requests=tuple(side.prepared(load.texts(seed), load.tokens)),
        pattern=Closed(clients=load.clients, seconds=seconds),
        seed=seed,
    )


def case_of(load: Load, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """One load for JSON: every side, and ours over each of theirs.

    Raises LoadFailed where a round of a side has no answer, since each round has a ratio of its own.
    """
    for name, runs in outcomes.items():
        if not all(run.requests for run in runs):
            raise LoadFailed(f"{load.name}: {name}: a round without an answer; give more --seconds")
    sides = {name: summary(each) for name, each in outcomes.items()}
    return {
        "case": load.name,
        "clients": load.clients,
        "tokens": load.tokens,
        "sides": sides,
        "ours_over": {name: load.goal.judged(sides[OURS], side) for name, side in sides.items() if name != OURS},
    }


async def compare(sides: Mapping[str, Side], *, rounds: int, seconds: float, seed: int) -> dict[str, Any]:
    """Vectors first, then all loads, then the generator's ceiling beside each side's fastest."""
    texts = [text for load in LOADS for text in load.texts(seed)[:COMPARED]]
    rows = {name: await side.embed(texts) for name, side in sides.items()}
    agreements = {name: agreement(rows[OURS], each) for name, each in rows.items() if name != OURS}
    # Of all servers, so that what an idle one takes from the others shows.
    watch = {name: pid for side in sides.values() for name, pid in side.pids.items()}
    cases: list[dict[str, Any]] = []
    fastest: dict[str, tuple[str, Plan, Outcome]] = {}
    plans = {(load.name, name): plan_of(load, side, seconds, seed) for load in LOADS for name, side in sides.items()}
    turns = [Case(name=f"{load}: {name}", plan=plan, watch=watch) for (load, name), plan in plans.items()]
    outcomes = dict(zip(plans, (await measured(turns, rounds, "against Infinity")).values(), strict=True))
    for load in LOADS:
        cases.append(case_of(load, {name: outcomes[load.name, name] for name in sides}))
        for name in sides:
            plan, reached = plans[load.name, name], best(outcomes[load.name, name])
            if name not in fastest or reached.requests_per_second > fastest[name][2].requests_per_second:
                fastest[name] = load.name, plan, reached
    ceilings = {}
    for name, (beside, plan, reached) in fastest.items():
        ceiling = await ceiling_of(plan, reached, seconds=min(seconds, 3.0), title=f"{name}: null server")
        ceilings[name] = ceiling.figures() | {"beside": beside}
    return {"agreement": agreements, "cases": cases, "null_server": ceilings}


async def measure(
    *, threads: int, batch_size: int, compiled: bool, rounds: int, seconds: float, seed: int
) -> dict[str, Any]:
    """All servers up at once, on the same weights."""
    folder = minilm.folder()
    with ExitStack() as cleanup:
        peers = {
            name: cleanup.enter_context(
                served(folder, threads=threads, batch_size=batch_size, compiled=name == COMPILED, patience=COMPILING)
            )
            for name in (PEER, COMPILED)[: 1 + compiled]
        }
        async with stack("minilm", worker={"threads": threads, "dtype": "float32"}) as pair:
            sides: dict[str, Side] = {OURS: Selvage(pair)}
            sides |= {name: Infinity(server, name) for name, server in peers.items()}
            found = await compare(sides, rounds=rounds, seconds=seconds, seed=seed)
    return {
        "benchmark": "infinity-cpu",
        "model": minilm.NAME,
        "dtype": "float32",
        "seed": seed,
        "counted": "geometric mean",
        "rounds": rounds,
        "seconds": seconds,
        "threads": threads,
        "batch_size": batch_size,
        "machine": describe(),
        "peer": VENV.versions(PACKAGES),
        **found,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.infinity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--compiled", action="store_true", help="add Infinity with --compile; needs a C++ compiler and minutes")
    add("--batch-size", type=int, default=32, help="of Infinity, at most (default: %(default)s, its own)")
    add("--threads", type=int, default=2, help="of every model (default: %(default)s)")
    add("--seconds", type=float, default=3.0, help="of each case in each round (default: %(default)s)")
    add("--rounds", type=int, default=16, help="interleaved rounds (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    add("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    given = parser.parse_args()
    outcome = run(
        measure(
            threads=given.threads,
            batch_size=given.batch_size,
            compiled=given.compiled,
            rounds=given.rounds,
            seconds=given.seconds,
            seed=given.seed,
        )
    )
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(outcome, indent=1) + "\n")
    Console().print(Markdown(tables.infinity(outcome)))
