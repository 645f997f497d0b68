"""Texts in pieces, in the worker's engine: what cutting costs.

Vectors of every way are compared with those of whole texts. No graph has pieces, so whole texts are measured both as
they are served and with their layers as they are written.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import ours
from benchmarks.accelerator.report import Row
from benchmarks.workloads import PROMPTS, Ids, Scale, token_ids

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
    """Measures each case; leaves the engine with whole texts, as it serves them."""
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
