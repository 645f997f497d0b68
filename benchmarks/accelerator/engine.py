"""The worker's engine on published workloads, without services: rates, latencies and memory.

Every workload is run by each kind of encoder. Headline workloads are profiled too: a table of kernels.
"""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, product

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import ours
from benchmarks.accelerator.report import Report, Row
from benchmarks.workloads import MAX_TOKENS, MINILM, Workload, token_ids

WORKLOADS = ("colbert-rerank", "big-rerank", "instruct-burst", "token-embed", "medium", "short", "clients")
"""Workloads in order of importance; those of one model stand together."""
HEADLINES, AT_ONCE = ("colbert-rerank", "instruct-burst", "token-embed"), ("big-rerank", "instruct-burst")
"""Workloads that are profiled; workloads whose requests come all at once, instead of in a closed loop."""
WARMUP, PROFILED, BURSTS = 0.3, 0.1, 5
"""Warm-up and profiled time as shares of a closed loop's seconds; number of bursts, whose median counts."""
Timed = tuple[float, int]
"""Seconds and tokens of an answer. Results are dropped as a client's would be, and the host's memory with them."""


def run_model(
    workloads: Sequence[Workload], device: str, seconds: float, report: Report, *, as_written: bool = True
) -> None:
    """Loads the workloads' model, and reports rows of each workload. `as_written`: by this kind of encoder too."""
    start, model = time.perf_counter(), workloads[0].model
    engine = ours.Ours(model, dtype="auto", device=device, max_tokens=MAX_TOKENS if model == MINILM else 0)
    place = engine.model.placement
    loaded = {"model": model, "dtype": place.dtype_name, "load s": round(time.perf_counter() - start, 1)}
    loaded |= {
        "weights GB": round(engine.model.weight_bytes / 1e9, 3),
        **memory(engine),
        "forms": engine.model.findings,
    }
    report.add_row("models", loaded)
    gc.collect()
    gc.freeze()  # as the worker does
    try:
        _run_workloads(engine, engine.encoders[0 if as_written else -1 :], workloads, seconds, report)
    finally:
        gc.unfreeze()  # the model is to go


def _run_workloads(
    engine: ours.Ours, kinds: Sequence[str], workloads: Sequence[Workload], seconds: float, report: Report
) -> None:
    """Reports rows of each workload by each kind of encoder, and then profiles."""
    model = workloads[0].model
    for kind in kinds:
        engine.run_by(kind)
        for workload in workloads:
            for count in workload.in_flight:
                labels = {"workload": workload.name, "model": model, "encoder": kind, "in flight": count}
                report.add_row("rows", labels | measured(engine, workload, count, seconds))
    for kind, workload in product(kinds, [workload for workload in workloads if workload.name in HEADLINES]):
        engine.run_by(kind)  # profiled last: the profiler may fail
        kernels = profiled(partial(_run, engine, workload, PROFILED * seconds), engine.model.placement.device)
        report.profile(workload.name, f"{workload.name}, {kind}\n{kernels}\n")


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


def _run(engine: ours.Ours, workload: Workload, seconds: float, in_flight: int = 0) -> tuple[float, list[Timed]]:
    """Runs a burst or a closed loop, of the workload's own size where `in_flight` is 0; gives seconds and answers."""
    jobs, in_flight = engine.jobs(workload, seed=1), in_flight or workload.in_flight[-1]
    start, waiting, finished = time.perf_counter(), cycle(jobs), list[Timed]()
    if workload.name in AT_ONCE:
        answers = engine.run(jobs)
        return time.perf_counter() - start, [(answer.seconds, answer.tokens) for answer in answers]
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


def profiled(work: Callable[[], object], device: torch.device) -> str:
    """Runs `work` under PyTorch's profiler; gives the table of the longest kernels."""
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as profiler:
        work()
        if on_cuda:
            torch.cuda.synchronize(device)
    by = f"self_{'device' if on_cuda else 'cpu'}_time_total"
    return str(profiler.key_averages().table(by, 60, max_name_column_width=120))
