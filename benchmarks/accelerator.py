"""Published shapes on an accelerator, a part after the other: limits, the engine, MaxSim, both services.

Weights are random, so torch, Triton, transformers and numpy are enough; the services' part is skipped where their
packages are missing. JSON is written after each part, and the run ends by itself before its limit: no part begins
without time for it, and one that hangs ends the process. That outputs are right is for tests/gpu to say.
"""

import argparse
import asyncio
import faulthandler
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle, groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import ours, products, result
from benchmarks.machine import describe
from benchmarks.workloads import MAX_TOKENS, MINILM, QUERY, WIDTH, Ids, Workload, named, token_ids

Row = dict[str, Any]
ENGINE = ("colbert-rerank", "big-rerank", "instruct-burst", "token-embed", "medium", "short", "clients")
"""Workloads of the engine, what matters most first; those of one model stand together."""
AT_ONCE = ("big-rerank", "instruct-burst")
"""Those whose jobs come all at once, instead of in a closed loop."""
SERVICES, FRONTENDS, CLIENTS = "short through the services", 4, 64
LEAST = 20.0
"""Seconds that a part needs to get anywhere."""
WARMUP, BURSTS = 0.3, 5
"""Of a closed loop's seconds, ahead of them; and how often all jobs come at once, of which the median counts."""
GOALS = {
    ("colbert-rerank", 64): ("161 req/s, 331,638 tok/s, p99 432 ms", "600,000 tok/s, p99 220 ms"),
    ("big-rerank", 1): ("1.14 req/s", "85 % of its encoder"),
    ("instruct-burst", 2000): ("288 req/s, 13,016 tok/s, p99 6.8 s", "40,000 tok/s, p99 2.3 s"),
    ("token-embed", 4): ("13.7 req/s, 55,463 tok/s, p99 328 ms", "280,000 tok/s"),
    ("medium", 64): ("253 req/s, 129,000 tok/s", "1,012 req/s"),
    ("short", 64): ("1,089 req/s", "8,712 req/s"),
    (SERVICES, 64): ("1,089 req/s", "8,712 req/s"),
    ("clients", 1): ("145,000 tok/s", ""),
    ("clients", 16): ("", "620,000 tok/s"),  # theirs, at a quarter of the clients
    ("clients", 64): ("620,000 tok/s", ""),
}
"""By workload and jobs in flight: what vLLM reached on an H200 through its server, and what is wanted there."""
SHAPES = ((1, 1000, 300, 25), (1, 5000, 300, 105), (1, 5000, 1024, 360), (32, 50, 180, 25), (32, 100, 256, 60))
"""MaxSim: queries, documents of each, tokens of a document, microseconds wanted on an H200."""
NEEDED = "import benchmarks.services, frontend_service.__main__, gpu_worker.__main__, harness.stack"


def limits(given: argparse.Namespace) -> Row:
    """What the device can do."""
    device = torch.device(given.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name,
        "flops_per_second": round(products.flops(device)),
        "bytes_per_second": round(products.bandwidth(device)),
    }


def engine_rows(given: argparse.Namespace, workloads: list[Workload]) -> Iterator[Row]:
    """Workloads of one model in the engine, without services."""
    model = workloads[0].model
    limit = MAX_TOKENS if model == MINILM else 0
    engine = ours.Ours(model, dtype="bfloat16", device=given.device, max_tokens=limit)
    for workload in workloads:
        jobs = engine.jobs(workload, seed=1)
        lengths = [length for each in workload.requests for length in each]
        flops = engine.linear_flops + engine.attention_flops(lengths)
        for count in workload.in_flight:
            if workload.name in AT_ONCE:
                big = workload.requests[0] if workload.kind == "rerank" else ()
                row = at_once(engine, jobs, token_ids(big, 1, engine.model.vocabulary_size))
            else:
                row = closed(engine, jobs, count, given.seconds)
            yield {"workload": workload.name, "model": workload.model, "in flight": count, "FLOP/token": flops, **row}


def closed(engine: ours.Ours, jobs: list[Any], in_flight: int, seconds: float) -> Row:
    """So many jobs open at any time. Rates are of a span from an answer to an answer."""
    waiting = cycle(jobs)

    def answered(least: float) -> tuple[float, list[ours.Answer]]:
        start, found = time.perf_counter(), list[ours.Answer]()
        while True:
            while len(engine) < in_flight:
                engine.submit(next(waiting))
            latest = engine.step()
            found += latest
            spent = time.perf_counter() - start
            if latest and spent >= least:
                return spent, found

    answered(WARMUP * seconds)
    row = figures(*answered(seconds))
    while len(engine):  # what is still open would be in the next run's way
        engine.step()
    return row


def at_once(engine: ours.Ours, jobs: list[Any], texts: list[Ids]) -> Row:
    """All jobs at once, and in turns the encoder alone over texts, where there are some: the run of median length."""
    runs: list[tuple[float, list[ours.Answer], float]] = []
    for _ in range(BURSTS):
        start = time.perf_counter()
        answers = engine.run(jobs)
        spent = time.perf_counter() - start
        runs.append((spent, answers, engine.encoder_seconds(texts) if texts else 0.0))
    spent, answers, encoder = sorted(runs, key=lambda run: run[0])[BURSTS // 2]
    return figures(spent, answers) | ({"% of its encoder": round(100 * encoder / spent, 1)} if texts else {})


def figures(seconds: float, answers: list[ours.Answer]) -> Row:
    """Rates and latencies."""
    middle, late = np.quantile([each.seconds * 1e3 for each in answers], (0.5, 0.99))
    return {
        "requests/s": round(len(answers) / seconds, 2),
        "tokens/s": round(sum(each.tokens for each in answers) / seconds),
        "p50 ms": round(float(middle), 3),
        "p99 ms": round(float(late), 3),
    }


def maxsim(given: argparse.Namespace) -> list[Row]:
    """The whole call, the kernel alone, and the time to read the documents once at the speed of a copy."""
    device = torch.device(given.device)
    speed = products.bandwidth(device)
    return [
        maxsim_row(shape, dtype, device, speed)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for shape in (SHAPES if given.scale == "full" else SHAPES[3:4])
    ]


def maxsim_row(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, speed: float) -> Row:
    """Every query against documents of its own, in one call."""
    queries, documents, tokens, goal = shape
    count = queries * documents * tokens
    query, rows = (
        F.normalize(torch.randn(each, WIDTH, device=device), dim=1).to(dtype) for each in (queries * QUERY, count)
    )
    lengths = [tokens] * (queries * documents)
    call, kernel = (
        products.seconds(ours.maxsim(query, rows, lengths, queries=queries, kernel_alone=alone), device, 20) * 1e6
        for alone in (False, True)
    )
    least = count * WIDTH * dtype.itemsize / speed * 1e6
    told = {"call us": call, "kernel us": kernel, "limit us": least, "% of limit": 100 * least / kernel}
    name = f"{queries} x {documents:,} x {tokens:,}, {str(dtype).removeprefix('torch.')}"
    return {"shape": name, **{what: round(value, 1) for what, value in told.items()}, "goal us": goal}


def services(given: argparse.Namespace) -> Row:
    """One worker on the device, four frontends, short texts. Skipped where a package is missing."""
    probe = subprocess.run([sys.executable, "-c", NEEDED], capture_output=True, text=True)
    if probe.returncode:
        return {"workload": SERVICES, "skipped": probe.stderr.strip().splitlines()[-1]}
    from benchmarks.services import Server, generated
    from harness.stack import stack

    async def run() -> Row:
        model = named(given.scale)["short"].model
        async with stack(model, frontends=FRONTENDS, worker={"device": given.device}) as pair:
            server = Server(
                address=",".join(each.address for each in pair.frontends),
                pids={"worker": pair.worker.pid, "frontend": pair.frontends[0].pid},
            )
            options = {"scale": given.scale, "clients": CLIENTS, "seconds": given.seconds, "warmup": 1.0}
            return await asyncio.to_thread(partial(generated, server, "short", **options))

    found = asyncio.run(run())
    told = {name: float(f"{value:.4g}") for name, value in found.items()}
    return {"workload": SERVICES, "in flight": CLIENTS, **told}


def compared(row: Row, limit: Mapping[str, Any]) -> Row:
    """A row with the limit that its operations set, and with its goal."""
    if "FLOP/token" in row and limit:
        most = limit["flops_per_second"] / row["FLOP/token"]
        row |= {"limit tokens/s": round(most), "% of limit": round(100 * row["tokens/s"] / most, 1)}
    published, wanted = GOALS.get((row["workload"], row.get("in flight", 0)), ("", ""))
    return row | {"vLLM on an H200": published, "goal there": wanted}


def parts(given: argparse.Namespace, report: Row) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is run, in order; each fills the report."""
    limit, rows = report["limits"], report["rows"]

    def engine(group: list[Workload]) -> None:
        for row in engine_rows(given, group):
            rows.append(compared(row, limit))
            print(row, flush=True)

    yield "limits", lambda: limit.update(limits(given))
    for model, group in groupby((named(given.scale)[name] for name in ENGINE), key=lambda each: each.model):
        yield f"engine, {model}", partial(engine, list(group))
    yield "maxsim", lambda: report["maxsim"].extend(maxsim(given))
    yield "services", lambda: rows.append(compared(services(given), limit))


def main(given: argparse.Namespace) -> int:
    """1 where a part failed."""
    faulthandler.dump_traceback_later(given.limit, exit=True)  # a part that hangs, or takes too long
    until = time.monotonic() + given.limit
    machine = describe() | ({"commit": given.commit} if given.commit else {})
    settings = {"scale": given.scale, "seconds": given.seconds, "limit": given.limit}
    report: Row = {"benchmark": "accelerator", "settings": settings, "machine": machine}
    report |= {"limits": {}, "rows": [], "maxsim": [], "parts": []}
    for name, part in parts(given, report):
        start, told = time.monotonic(), {"part": name}
        if until - start < LEAST:
            told["skipped"] = "the time is up"
        else:
            try:
                part()
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                told["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        report["parts"].append(told | {"seconds": round(time.monotonic() - start, 1)})
        result.write(report, given.out)
    faulthandler.cancel_dump_traceback_later()
    print(f"\n{report['limits']}\n\n{table(report['rows'])}\n\n{table(report['maxsim'])}\n\n{table(report['parts'])}")
    return int(any("error" in each for each in report["parts"]))


def table(rows: list[Row]) -> str:
    """A column a figure that any row has."""
    names = [name for name in dict.fromkeys(name for each in rows for name in each) if name != "FLOP/token"]
    return result.table(names, [[_cell(each.get(name, "")) for name in names] for each in rows]) if rows else ""


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
