"""The tables of docs/scaling.md: what was measured, what follows from it, and what was simulated."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from benchmarks.result import number, read, table
from benchmarks.scale.constants import (
    CPU,
    GRPC,
    LONG,
    ROWS,
    SIZES,
    FrontendCost,
    figures,
    frontend_cost,
    medians,
)

NO_RESULT = "No result yet."
SPEEDS = (10_000, 100_000, 1_000_000)
"""Tokens a second of a worker for which sizes are worked out."""
REQUESTS = ((1, 16), (1, 128), (32, 128), (32, 512))
"""Texts of a request, and tokens of each."""
BUSY = 0.7
"""Share of its core that a frontend should use: above it, requests wait for each other."""
REPLIES = ("float32", "float16", "int8", "binary")
REAL, SIMULATED = "real processes", "simulated"


def measured_first(render: Callable[[], str]) -> Callable[[], str]:
    """Renders NO_RESULT where what a table needs was not measured."""

    @wraps(render)
    def rendered() -> str:
        try:
            return render()
        except (KeyError, StopIteration):
            return NO_RESULT

    return rendered


def conditions(name: str) -> str:
    """States where a result was measured."""
    machine = read(name)["machine"]
    return f"{machine['processor']}, {machine['cores']} cores; commit {machine['commit']}."


@measured_first
def frontends() -> str:
    """Renders requests/s, and CPU a request by process, for each API and load."""
    heads = [
        "",
        "requests/s here",
        "p50 ms",
        "p99 ms",
        "CPU ms: clients",
        "frontends",
        "worker",
        "requests/s of a frontend's core",
        "of a worker's core",
    ]
    rows = [
        [f"{case['case']}, {side}", *map(number, _load_figures(medians(case, side)))]
        for case in read("frontends")["cases"]
        for side in case["sides"]
        if case["case"] != SIZES and not side.startswith("null")
    ]
    return f"{conditions('frontends')}\n\n{table(heads, rows)}"


def _load_figures(row: Mapping[str, float]) -> list[float]:
    parts = [row[f"{part}: {CPU}"] for part in ("clients", "frontend", "worker")]
    return [row["requests/s"], row["p50 ms"], row["p99 ms"], *parts, 1e3 / parts[1], 1e3 / parts[2]]


@measured_first
def costs() -> str:
    """Renders the constants of the arithmetic."""
    sizes, token_rows = figures("frontends", SIZES, GRPC), figures("frontends", ROWS, GRPC)
    megabytes = 56 * 254 * sizes["float32 rows: bytes/token"] / 1e6
    costs = {side: frontend_cost(side) for side in (GRPC, "HTTP")}
    link = figures("frontends", LONG, GRPC)[f"worker: {CPU}"]
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
    return f"{conditions('frontends')}\n\n{table(['what', 'takes'], rows)}"


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


@measured_first
def network() -> str:
    """Renders the network that token rows need, each way of a frontend, by data type."""
    sizes = figures("frontends", SIZES, GRPC)
    heads = ["rows of 384 numbers", "bytes a token", *(f"Gbit/s at {speed:,} tokens/s" for speed in SPEEDS)]
    rows = [
        [kind, number(size), *(number(8 * size * speed / 1e9) for speed in SPEEDS)]
        for kind in REPLIES
        for size in [sizes[f"{kind} rows: bytes/token"]]
    ]
    return table(heads, rows)


@measured_first
def check() -> str:
    """Renders the simulation beside the processes, and how far apart they are."""
    names = ("goodput/s", "p50 ms", "p99 ms")
    heads = ["workers, load", *(f"{name}: {side}" for name in names for side in ("simulated", "real", "ratio"))]
    rows = []
    for case in read("scaling_check")["cases"]:
        simulated, real = medians(case, SIMULATED), medians(case, REAL)
        row = [[simulated[name], real[name], simulated[name] / real[name]] for name in names]
        rows.append([case["case"], *(number(value) for values in row for value in values)])
    return f"{conditions('scaling_check')}\n\n{table(heads, rows)}"


@measured_first
def simulated() -> str:
    """Renders what was simulated."""
    heads = [
        "workers x frontends, load",
        "requests/s at most",
        "goodput, %",
        "p50 ms",
        "p99 ms",
        "refused/s",
        "expired/s",
    ]
    heads.append("least of a key, % of its fair share")
    rows = []
    for case in read("scaling")["cases"]:
        row: Mapping[str, Any] = {"refused/s": 0.0, "expired/s": 0.0} | medians(case, SIMULATED)
        shown = [
            "capacity, requests/s",
            "goodput, % of capacity",
            "p50 ms",
            "p99 ms",
            "refused/s",
            "expired/s",
            heads[-1],
        ]
        rows.append([case["case"], *(number(row[name]) for name in shown)])
    return f"Virtual time; commit {read('scaling')['machine']['commit']}.\n\n{table(heads, rows)}"


BLOCKS = {
    "scaling-frontends": frontends,
    "scaling-costs": costs,
    "scaling-needed": needed,
    "scaling-network": network,
    "scaling-check": check,
    "scaling-simulated": simulated,
}
