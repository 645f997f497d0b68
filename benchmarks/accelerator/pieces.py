"""Texts in pieces, and texts that begin alike, in the worker's engine: what cutting costs and what sharing brings.

Vectors of every way are compared with those of whole texts. No graph has pieces and texts that share,
so whole texts are measured both as they are served and with their layers as they are written.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import ours
from benchmarks.accelerator.report import Row
from benchmarks.ours import SharingTimes
from benchmarks.workloads import PROMPTS, Ids, Scale, token_ids

RUNS = 5
"""Runs of each way; the median counts."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine. `chunk`: most tokens of a piece, 0 for whole texts; `step`: most of a step, 0 as served;
    `shares`: texts that begin alike share what they have in common, where the measured times say that it pays, or
    `always` where that spares an eighth of a step; `kind`: of encoder."""

    name: str
    chunk: int = 0
    step: int = 0
    shares: bool = False
    always: bool = False
    kind: str = ours.SERVED


WHOLE = EngineSettings("whole")
WRITTEN = EngineSettings("whole, layers as written", kind=ours.EAGER)
SHARED = EngineSettings("shared where it pays", shares=True)
ALWAYS = EngineSettings("shared", shares=True, always=True)
FREE = SharingTimes(tokens=(1,), whole=(1.0,), sharing=(0.0,))
"""Times by which sharing takes none."""
PUBLISHED = EngineSettings("pieces of 128, steps of 512", chunk=128, step=512)
IN_STEPS = EngineSettings("whole, steps of 512", step=512)


def cases(vocabulary: int, scale: Scale) -> dict[str, tuple[list[Ids], tuple[EngineSettings, ...]]]:
    """The texts of each case and their ways, whole ones first."""
    prompt, instruction, *words, last = token_ids((80, 24, 3, 1), vocabulary=vocabulary)
    long, chunk, count = (32_768, 2048, 64) if scale == "full" else (256, 64, 4)
    prompts = [np.concatenate([np.tile(words[0], repeats), last]) for repeats in PROMPTS]
    cut = EngineSettings(f"pieces of {chunk:,}", chunk=chunk)

    def begun(beginning: Ids, shortest: int, longest: int) -> list[Ids]:
        lengths = np.random.default_rng(3).integers(shortest, longest, count).tolist()
        return [np.concatenate([beginning, rest]) for rest in token_ids(lengths, seed=2, vocabulary=vocabulary)]

    return {
        "published prompts": (prompts, (WHOLE, WRITTEN, SHARED, ALWAYS, IN_STEPS, PUBLISHED)),
        f"one text of {long:,} tokens": (token_ids((long,), vocabulary=vocabulary), (WHOLE, WRITTEN, cut)),
        f"80 tokens before {count} documents": (begun(prompt, 60, 180), (WHOLE, WRITTEN, SHARED, ALWAYS)),
        f"24 tokens before {count} queries": (begun(instruction, 6, 24), (WHOLE, WRITTEN, SHARED, ALWAYS)),
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
            engine.cut_texts(way.chunk, shares=way.shares, step_tokens=step)
            place, taken = engine.model.placement, list[float]()
            if place.memory:
                torch.cuda.reset_peak_memory_stats(place.device)
            before = engine.shared_tokens
            with patch.object(engine.model.encoder, "sharing_times", FREE) if way.always else nullcontext():
                for _ in range(1 + RUNS):  # the first one warms up
                    start = time.perf_counter()
                    vectors[way.name] = engine.embed(texts)
                    taken.append(time.perf_counter() - start)
            shared = (engine.shared_tokens - before) // (1 + RUNS)
            rate = sum(map(len, texts)) / float(np.median(taken[1:]))
            least = float((vectors[way.name] * vectors[WHOLE.name]).sum(axis=1).min())
            row = {"texts": name, "way": way.name, "tokens/s": round(rate), "least cosine": round(least, 5)}
            row["shared tokens"] = shared
            peak = {"peak GB": round(torch.cuda.max_memory_allocated(place.device) / 1e9, 3)} if place.memory else {}
            rows.append(row | peak)
    engine.run_by(engine.encoders[-1])
    return rows
