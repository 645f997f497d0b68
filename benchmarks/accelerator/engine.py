"""The worker's engine on published workloads, without services: rates, latencies, memory, and what its steps launch.

Every workload is run by each kind of encoder. Headline workloads are profiled too, and reported separately.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

import numpy as np
import torch

from benchmarks import ours
from benchmarks.accelerator.report import Report, Row
from benchmarks.accelerator.trace import STEP, traced
from benchmarks.workloads import MAX_TOKENS, MINILM, PROMPTS, Ids, Scale, Workload, token_ids

WORKLOADS = ("colbert-rerank", "big-rerank", "instruct-burst", "token-embed", "medium", "short", "clients")
"""Workloads in order of importance; those of one model stand together."""
HEADLINES, AT_ONCE = ("colbert-rerank", "instruct-burst", "token-embed"), ("big-rerank", "instruct-burst")
"""Workloads that are profiled; workloads whose requests come all at once, instead of in a closed loop."""
WARMUP, PROFILED, BURSTS = 0.3, 0.1, 5
"""Warm-up and profiled time as shares of a closed loop's seconds; number of bursts, whose median counts."""

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
