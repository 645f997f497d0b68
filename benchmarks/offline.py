"""The engine against sentence-transformers and ONNX Runtime on MiniLM: 64 texts a mix of lengths, one process.

Token ids are prepared on all sides, outputs are compared before anything is timed, rounds are interleaved. Batch sizes
of "best" sides are chosen anew for every mix.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.engine_alone import Rows, ours
from benchmarks.machine import describe
from benchmarks.minilm import NAME, folder
from benchmarks.mixes import MIXES, Texts
from benchmarks.onnx_peer import OnnxPeer, export, quantised
from benchmarks.rounds import interleaved, seconds, spread
from benchmarks.sentence_transformers_peer import SentenceTransformersPeer
from gpu_worker.allocator import keep_freed_memory
from gpu_worker.models.loading import load
from gpu_worker.placement import Placement

RESULT = Path(__file__).parent / "results" / "offline-cpu.json"
EXACT = "sentence-transformers default"
"""The side that the others are compared with."""
SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Somebody who embeds texts. `batch_size` 0: it makes batches of its own."""

    embed: Callable[[Texts, int], Rows]
    batch_sizes: Sequence[int] = (0,)
    difference: float = 1e-5

    def best(self, texts: Texts) -> int:
        """Its fastest batch size on half of the texts, by the better of two runs each."""
        if len(self.batch_sizes) == 1:
            return self.batch_sizes[0]
        sample, timed = texts[::2], []
        for size in self.batch_sizes:
            self.embed(sample[:size], size)
            timed.append((min(seconds(partial(self.embed, sample, size)) for _ in range(2)), size))
        return min(timed)[1]


def all_sides(threads: int) -> dict[str, Side]:
    """Everybody, loaded; ONNX Runtime exports the model first."""
    path = str(folder())
    single, half = (load("minilm", Placement.choose("cpu", dtype), max_tokens=512) for dtype in ("float32", "bfloat16"))
    reference = SentenceTransformersPeer(path)
    with tempfile.TemporaryDirectory() as made:
        exported = export(path, Path(made))
        onnx, small = OnnxPeer(exported, threads), OnnxPeer(quantised(exported), threads)
    return {
        "selvage float32": Side(embed=ours(single)),
        EXACT: Side(embed=reference.embed, batch_sizes=(32,)),
        "onnxruntime float32, best batch": Side(embed=onnx.embed, batch_sizes=SIZES),
        "selvage bfloat16": Side(embed=ours(half), difference=2e-2),
        "sentence-transformers, best batch": Side(embed=reference.embed, batch_sizes=SIZES),
        "onnxruntime int8, best batch": Side(embed=small.embed, batch_sizes=SIZES, difference=1.0),
    }


def measure(mix: str, sides: dict[str, Side], count: int, rounds: int, seed: int) -> dict[str, Any]:
    """One mix of lengths: every side's batch size, how far it is from the exact rows, how long it takes."""
    texts = MIXES[mix](count, seed)
    sizes = {name: side.best(texts) for name, side in sides.items()}
    rows = {name: side.embed(texts, sizes[name]) for name, side in sides.items()}
    differences = {name: float(np.abs(each - rows[EXACT]).max()) for name, each in rows.items()}
    for name, difference in differences.items():
        assert difference < sides[name].difference, f"{name} differs by {difference}"
    cosines = {name: (each * rows[EXACT]).sum(axis=1) for name, each in rows.items()}
    works = {name: partial(side.embed, texts, sizes[name]) for name, side in sides.items()}
    times = interleaved(works, rounds, mix)
    tokens = sum(map(len, texts))
    median = {name: float(np.median(each)) for name, each in times.items()}
    return {
        "mix": mix,
        "texts": count,
        "tokens": tokens,
        "longest": max(map(len, texts)),
        "sides": {
            name: {
                "tokens_per_second": round(tokens / median[name]),
                "batch_size": sizes[name] or None,
                "largest_difference": differences[name],
                "mean_cosine": round(float(cosines[name].mean()), 6),
                "lowest_cosine": round(float(cosines[name].min()), 6),
            }
            | spread(times[name])
            for name in sides
        },
        "is_faster_by": {
            own: {name: round(median[name] / median[own], 2) for name in median if "selvage" not in name}
            for own in median
            if "selvage" in own
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES), help="default: all")
    parser.add_argument("--texts", type=int, default=64, help="a mix (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as the worker does
    everybody = all_sides(arguments.threads)
    outcome = {
        "benchmark": "offline-cpu",
        "workload": {"model": NAME, "seed": arguments.seed},
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "machine": describe(),
        "cases": [
            measure(mix, everybody, arguments.texts, arguments.rounds, arguments.seed) for mix in arguments.mixes
        ],
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    for case in outcome["cases"]:
        for side_name, figures in case["sides"].items():
            cosine = f"lowest cosine {figures['lowest_cosine']:.4f}"
            print(f"{case['mix']:10} {side_name:36} {figures['tokens_per_second']:8,} tokens/s  {cosine}")
        print(json.dumps(case["is_faster_by"], indent=1))
