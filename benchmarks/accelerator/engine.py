"""The worker's engine on published workloads, without services: rates, latencies and memory."""

import gc
import time
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch

from benchmarks import ours
from benchmarks.accelerator.report import Report, Row
from benchmarks.workloads import MAX_TOKENS, MINILM, Workload, token_ids

WORKLOADS = ("colbert-rerank", "big-rerank", "instruct-burst", "token-embed", "medium", "short", "clients")
"""Workloads in order of importance; those of one model stand together."""
AT_ONCE = ("big-rerank", "instruct-burst")
"""Workloads whose requests come all at once, instead of in a closed loop."""
WARMUP, BURSTS = 0.3, 5
"""Warm-up as a share of a closed loop's seconds; number of bursts, whose median counts."""
Timed = tuple[float, int]
"""Seconds and tokens of an answer. Results are dropped as a client's would be, and the host's memory with them."""


def run_model(workloads: Sequence[Workload], device: str, seconds: float, report: Report) -> None:
    """Loads the workloads' model, and reports rows of each workload."""
    start, model = time.perf_counter(), workloads[0].model
    engine = ours.Ours(model, dtype="auto", device=device, max_tokens=MAX_TOKENS if model == MINILM else 0)
    place = engine.model.placement
    loaded = {"model": model, "dtype": place.dtype_name, "load s": round(time.perf_counter() - start, 1)}
    loaded["weights GB"] = round(engine.model.weight_bytes / 1e9, 3)
    report.add_row("models", loaded | memory(engine) | {"forms": engine.model.findings})
    gc.collect()
    gc.freeze()  # as the worker does
    try:
        for workload in workloads:
            for count in workload.in_flight:
                labels = {"workload": workload.name, "model": model, "in flight": count}
                report.add_row("rows", labels | measured(engine, workload, count, seconds))
    finally:
        gc.unfreeze()  # the model is to go


def measured(engine: ours.Ours, workload: Workload, in_flight: int, seconds: float) -> Row:
    """Measures one workload; of several bursts the one of median length counts."""
    _run(engine, workload, WARMUP * seconds, in_flight)
    before = memory(engine)
    if before:
        torch.cuda.reset_peak_memory_stats(engine.model.placement.device)
    times = BURSTS if workload.name in AT_ONCE else 1
    runs = [_run(engine, workload, seconds, in_flight) for _ in range(times)]
    spent, answers = sorted(runs, key=lambda run: run[0])[times // 2]
    row = figures(spent, answers)
    if workload.name in AT_ONCE and workload.kind == "rerank":
        texts = token_ids(workload.requests[0], 1, engine.model.vocabulary_size)
        alone = float(np.median([engine.encoder_seconds(texts) for _ in range(BURSTS)]))
        row["% of its encoder"] = round(100 * alone / spent, 1)
    if before:
        peak = torch.cuda.max_memory_allocated(engine.model.placement.device)
        row |= {"peak GB": round(peak / 1e9, 3), "grown GB": round(memory(engine)["used GB"] - before["used GB"], 3)}
    return row


def memory(engine: ours.Ours) -> Row:
    """Reads the device's memory: in tensors, held by the allocator, and in all; empty on a processor."""
    return {f"{name} GB": round(value / 1e9, 3) for name, value in engine.model.placement.memory.items()}


def _run(engine: ours.Ours, workload: Workload, seconds: float, in_flight: int) -> tuple[float, list[Timed]]:
    """Runs a burst or a closed loop; gives seconds and answers."""
    jobs, finished = engine.jobs(workload, seed=1), list[Timed]()
    start = time.perf_counter()
    if workload.name in AT_ONCE:
        answers = engine.run(jobs)
        return time.perf_counter() - start, [(answer.seconds, answer.tokens) for answer in answers]
    waiting = cycle(jobs)
    while True:
        while len(engine) < in_flight:
            engine.submit(next(waiting))
        latest = engine.step()
        finished += [(answer.seconds, answer.tokens) for answer in latest]
        spent = time.perf_counter() - start
        if latest and spent >= seconds:  # the time ends with an answer
            break
    while len(engine):  # open jobs would disturb the next run
        engine.step()
    return spent, finished


def figures(seconds: float, answers: Sequence[Timed]) -> Row:
    """Computes rates and latencies."""
    middle, late = np.quantile([1e3 * took for took, _ in answers], (0.5, 0.99))
    return {
        "requests/s": round(len(answers) / seconds, 2),
        "tokens/s": round(sum(tokens for _, tokens in answers) / seconds),
        "p50 ms": round(float(middle), 3),
        "p99 ms": round(float(late), 3),
    }
