"""The worker's engine on published workloads, without services: rates, latencies, memory, and what its steps launch.

Every workload is run by each kind of encoder. Headline workloads are profiled too, and reported separately.
"""

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import ours
from benchmarks.accelerator.report import Report, Row
from benchmarks.workloads import MAX_TOKENS, MINILM, PROMPTS, Ids, Scale, Workload, token_ids

WORKLOADS = ("colbert-rerank", "big-rerank", "instruct-burst", "token-embed", "medium", "short", "clients")
"""Workloads in order of importance; those of one model stand together."""
HEADLINES, AT_ONCE = ("colbert-rerank", "instruct-burst", "token-embed"), ("big-rerank", "instruct-burst")
"""Workloads that are profiled; workloads whose requests come all at once, instead of in a closed loop."""
WARMUP, PROFILED, BURSTS = 0.3, 0.1, 5
"""Warm-up and profiled time as shares of a closed loop's seconds; number of bursts, whose median counts."""

STEP = "step"
"""Name of steps in the trace."""
RAN = {"cuda": ("kernel", "gpu_memcpy", "gpu_memset"), "cpu": ("cpu_op",)}
NAMED = ("gpu_user_annotation", "user_annotation")
CALLS = ("cuda_runtime", "cuda_driver")
"""Categories of what runs on the device, of what ran of a named step, and of what the host asks the device for."""
LAUNCHES = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")
"""Parts of the names of calls that launch something. A graph is one launch."""
Timed = tuple[float, int]
"""Seconds and tokens of an answer. Results are dropped as a client's would be, and the host's memory with them."""
RUNS = 5
"""Runs of each way; the median counts."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine. `chunk`: most tokens of a piece, 0 for whole texts; `step`: most of a step, 0 as served;
    `kind`: of encoder."""

    name: str
    chunk: int = 0
    step: int = 0
    kind: str = ours.SERVED


WHOLE = EngineSettings("whole")
WRITTEN = EngineSettings("whole, layers as written", kind=ours.EAGER)
PUBLISHED = EngineSettings("pieces of 128, steps of 512", chunk=128, step=512)
IN_STEPS = EngineSettings("whole, steps of 512", step=512)


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
    model, place = workloads[0].model, engine.model.placement
    for kind in kinds:
        engine.run_by(kind)
        for workload in workloads:
            for count in workload.in_flight:
                labels = {"workload": workload.name, "model": model, "encoder": kind, "in flight": count}
                report.add_row("rows", labels | measured(engine, workload, count, seconds))
    if any(workload.kind == "tokens" for workload in workloads) and not engine.model.whole_texts:
        for row in pieces(engine, report.scale):
            report.add_row("pieces", {"model": model, **row})
    for kind, workload in product(kinds, [workload for workload in workloads if workload.name in HEADLINES]):
        engine.run_by(kind)  # profiled last: the profiler may fail
        with engine.marked(STEP):
            launched, kernels = traced(partial(_run, engine, workload, PROFILED * seconds), place.device)
        report.add_row("steps", {"workload": workload.name, "encoder": kind, **launched})
        report.profile(workload.name, f"{workload.name}, {kind}: {launched}\n{kernels}\n")


def cases(vocabulary: int, scale: Scale) -> dict[str, tuple[list[Ids], tuple[EngineSettings, ...]]]:
    """The texts of each case and their ways, whole ones first."""
    words, last = token_ids((3, 1), vocabulary=vocabulary)
    long, chunk = (32_768, 2048) if scale == "full" else (256, 64)
    prompts = [np.concatenate([np.tile(words, repeats), last]) for repeats in PROMPTS]
    cut = EngineSettings(f"pieces of {chunk:,}", chunk=chunk)
    return {
        "published prompts": (prompts, (WHOLE, WRITTEN, IN_STEPS, PUBLISHED)),
        f"one text of {long:,} tokens": (token_ids((long,), vocabulary=vocabulary), (WHOLE, WRITTEN, cut)),
    }


def pieces(engine: ours.Ours, scale: Scale) -> list[Row]:
    """Measures what cutting texts costs; leaves the engine with whole texts, as it serves them.

    Vectors of every way are compared with those of whole texts. No graph has pieces, so whole texts are measured both
    as they are served and with their layers as they are written.
    """
    rows = list[Row]()
    for name, (texts, ways) in cases(engine.model.vocabulary_size, scale).items():
        vectors = dict[str, ours.Rows]()
        for way in ways:
            engine.run_by(way.kind if way.kind in engine.encoders else ours.EAGER)
            step = way.step or engine.step_tokens
            engine.bound_steps(step)
            engine.cut_texts(way.chunk)
            place, taken = engine.model.placement, list[float]()
            if place.memory:
                torch.cuda.reset_peak_memory_stats(place.device)
            for _ in range(1 + RUNS):  # the first one warms up
                start = time.perf_counter()
                vectors[way.name] = engine.embed(texts)
                taken.append(time.perf_counter() - start)
            rate = sum(map(len, texts)) / float(np.median(taken[1:]))
            least = float((vectors[way.name] * vectors[WHOLE.name]).sum(axis=1).min())
            row = {"texts": name, "way": way.name, "tokens/s": round(rate), "least cosine": round(least, 5)}
            peak = {"peak GB": round(torch.cuda.max_memory_allocated(place.device) / 1e9, 3)} if place.memory else {}
            rows.append(row | peak)
    engine.run_by(engine.encoders[-1])
    return rows


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


def figures_of_step(events: Sequence[dict[str, Any]], device: str) -> dict[str, float]:
    """Computes figures of a step from events in Chrome's trace format, on a device of type `device`."""
    ran = sorted((event for event in events if event.get("cat") in RAN[device]), key=lambda event: event["ts"])
    named = [[event for event in events if event.get("cat") == kind and event["name"] == STEP] for kind in NAMED]
    steps = sorted((event["ts"], event["ts"] + event["dur"]) for event in named[0] or named[1])  # by the device's clock
    calls = [event["name"] for event in events if event.get("cat") in CALLS]
    waited, end = 0.0, ran[0]["ts"]
    for event in ran:
        waited, end = waited + max(0.0, event["ts"] - end), max(end, event["ts"] + event["dur"])
    between = [max(0.0, later - former) for (_, former), (later, _) in pairwise(steps)]
    step_figures = {
        "kernels": len(ran) / len(steps),
        "launches": sum(any(part in name for part in LAUNCHES) for name in calls) / len(steps),
        "ms": sum(stop - start for start, stop in steps) / len(steps) / 1e3,
        "idle before the next ms": float(np.median(between)) / 1e3 if between else 0.0,
        "device idle %": 100 * waited / (end - ran[0]["ts"]),
    }
    return {name: round(value, 3) for name, value in step_figures.items()}


def traced(work: Callable[[], object], device: torch.device) -> tuple[dict[str, float], str]:
    """Runs `work` under the profiler; gives figures of a step, and the table of the longest kernels."""
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as profiler:
        work()
        if on_cuda:
            torch.cuda.synchronize(device)
    with TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    by = f"self_{'device' if on_cuda else 'cpu'}_time_total"
    return figures_of_step(events, device.type), profiler.key_averages().table(by, 60, max_name_column_width=120)
