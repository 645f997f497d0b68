"""What the simulation and the arithmetic of docs/scaling.md start from, read from measured results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.result import read
from benchmarks.scale.simulation import Scale
from benchmarks.scale.timed_engine import StepTime

GRPC, NULL = "gRPC", "null grpc.aio server"
ONE, SHORT = "1 frontend, 1 client, 16 tokens", "1 frontend, 64 clients, 16 tokens"
LONG = "1 frontend, 64 clients, texts of 128 tokens"
LISTS, LONG_LISTS = (f"1 frontend, 16 clients, 32 texts of {tokens} tokens" for tokens in (16, 128))
ROWS = "1 frontend, 2 clients, token vectors of 56 texts of 254 tokens"
SIZES, CPU = "sizes", "CPU ms/request"
TIME, STEP_TOKENS, TOKENS, DEADLINE = StepTime(speed=4000.0, overhead=0.01), 1024, 128, 2.0
"""The timed workers of checks and simulations, slow so that two cores can bear four of them: the time of their steps,
and their largest step; the tokens of a request, and its deadline in seconds."""


def figures(name: str, case: str, side: str) -> dict[str, float]:
    """The medians of one side of a case of a result. Raises KeyError for a case that was not measured."""
    return medians(next(row for row in read(name).get("cases", [{"case": case}]) if row["case"] == case), side)


def medians(case: Mapping[str, Any], side: str) -> dict[str, float]:
    """The medians of one side of a case."""
    return {figure: spread["median"] for figure, spread in case["sides"][side].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendCost:
    """CPU milliseconds of a frontend: `request` for each request, `text` for each text, `token` for each token."""

    request: float
    text: float
    token: float

    def milliseconds(self, texts: int, tokens: int) -> float:
        """CPU milliseconds of a request of so many texts and tokens in all."""
        return self.request + texts * self.text + tokens * self.token


def frontend_cost(side: str = GRPC) -> FrontendCost:
    """Solves the costs from requests of 1 and of 32 texts, of 16 and of 128 tokens each."""
    short, lists, long_lists = (
        figures("frontends", case, side)[f"frontend: {CPU}"] for case in (SHORT, LISTS, LONG_LISTS)
    )
    token = (long_lists - lists) / (32 * (128 - 16))
    text = (lists - short - (32 - 1) * 16 * token) / (32 - 1)
    return FrontendCost(request=short - text - 16 * token, text=text, token=token)


def measured_scale(workers: int, frontends: int) -> Scale:
    """Timed workers, and frontends as they were measured: what a request takes of a core, and what a message takes."""
    single, busy = figures("frontends", ONE, GRPC), figures("frontends", LONG, GRPC)
    hops = 4  # client to frontend to worker, and back
    return Scale(
        workers=workers,
        frontends=frontends,
        time=TIME,
        step_tokens=STEP_TOKENS,
        latency=max(0.0, single["p50 ms"] - single[f"frontend: {CPU}"]) / hops / 1e3,
        request_seconds=busy[f"frontend: {CPU}"] / 1e3,
        refusal_seconds=figures("frontends", SHORT, NULL)[f"null: {CPU}"] / 1e3,
    )
