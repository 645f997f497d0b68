"""The tables of sizing in docs/operating.md: what `frontends` measured, and what follows from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from benchmarks.result import number, read, table

GRPC = "gRPC"
SHORT, LONG = (f"1 frontend, 64 clients, {text}" for text in ("16 tokens", "texts of 128 tokens"))
LISTS, LONG_LISTS = (f"1 frontend, 16 clients, 32 texts of {tokens} tokens" for tokens in (16, 128))
ROWS = "1 frontend, 2 clients, token vectors of 56 texts of 254 tokens"
SIZES, CPU = "sizes", "CPU ms/request"
"""Our side of `frontends`, its cases, and the figure of each process."""
NO_RESULT = "No result yet."
SPEEDS = (10_000, 100_000, 1_000_000)
"""Tokens a second of a worker for which sizes are worked out."""
REQUESTS = ((1, 16), (1, 128), (32, 128), (32, 512))
"""Texts of a request, and tokens of each."""
BUSY = 0.7
"""Share of its core that a frontend should use: above it, requests wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendCost:
    """CPU milliseconds of a frontend: `request` for each request, `text` for each text, `token` for each token."""

    request: float
    text: float
    token: float

    def milliseconds(self, texts: int, tokens: int) -> float:
        """CPU milliseconds of a request of so many texts and tokens in all."""
        return self.request + texts * self.text + tokens * self.token


def figures(case: str, side: str) -> dict[str, float]:
    """The medians of one side of a case. Raises KeyError for a case that was not measured."""
    return medians({row["case"]: row for row in read("frontends")["cases"]}[case], side)


def medians(case: Mapping[str, Any], side: str) -> dict[str, float]:
    """The medians of one side of a case."""
    return {figure: spread["median"] for figure, spread in case["sides"][side].items()}


def frontend_cost(side: str = GRPC) -> FrontendCost:
    """Solves the costs from requests of 1 and of 32 texts, of 16 and of 128 tokens each."""
    short, lists, long_lists = (figures(case, side)[f"frontend: {CPU}"] for case in (SHORT, LISTS, LONG_LISTS))
    token = (long_lists - lists) / (32 * (128 - 16))
    text = (lists - short - (32 - 1) * 16 * token) / (32 - 1)
    return FrontendCost(request=short - text - 16 * token, text=text, token=token)


def measured_first(render: Callable[[], str]) -> Callable[[], str]:
    """Renders NO_RESULT where what a table needs was not measured."""

    @wraps(render)
    def rendered() -> str:
        try:
            return render()
        except KeyError:
            return NO_RESULT

    return rendered


def conditions() -> str:
    """States where the frontends were measured."""
    machine = read("frontends")["machine"]
    return f"{machine['processor']}, {machine['cores']} cores; commit {machine['commit']}."


@measured_first
def costs() -> str:
    """Renders the constants of the arithmetic."""
    sizes, token_rows = figures(SIZES, GRPC), figures(ROWS, GRPC)
    megabytes = 56 * 254 * sizes["float32 rows: bytes/token"] / 1e6
    costs = {side: frontend_cost(side) for side in (GRPC, "HTTP")}
    link = figures(LONG, GRPC)[f"worker: {CPU}"]
    rows = [[f"a request, {side}", f"{number(cost.request)} ms of a frontend's core"] for side, cost in costs.items()]
    rows += [[f"each text of it, {side}", f"{number(cost.text)} ms"] for side, cost in costs.items()]
    rows += [[f"each 1,000 tokens of it, {side}", f"{number(1e3 * cost.token)} ms"] for side, cost in costs.items()]
    rows += [
        [
            "a megabyte of token rows, gRPC",
            f"{number(token_rows[f'frontend: {CPU}'] / megabytes)} ms of a frontend's core",
        ],
        ["the same", f"{number(token_rows[f'worker: {CPU}'] / megabytes)} ms of the worker's host"],
        ["a request of one text", f"{number(link)} ms of the worker's host, beside packing its steps"],
    ]
    return f"{conditions()}\n\n{table(['what', 'takes'], rows)}"


def frontends_needed(speed: float, texts: int, tokens: int, cost: FrontendCost) -> float:
    """Frontends, of a core each, for a worker of `speed` tokens a second: a part of BUSY of each core is used."""
    requests = speed / (texts * tokens)
    return requests * cost.milliseconds(texts, texts * tokens) / 1e3 / BUSY


@measured_first
def needed() -> str:
    """Renders how many frontends a worker needs."""
    cost = frontend_cost()
    heads = ["texts a request, tokens each", *(f"{speed:,} tokens/s" for speed in SPEEDS)]
    rows = [
        [f"{texts} x {tokens}", *(number(frontends_needed(speed, texts, tokens, cost)) for speed in SPEEDS)]
        for texts, tokens in REQUESTS
    ]
    return table(heads, rows)


BLOCKS = {"scaling-costs": costs, "scaling-needed": needed}
