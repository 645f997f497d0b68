"""The engine against sentence-transformers and ONNX Runtime: 64 texts of lognormal length, one process, two threads.

Token ids are prepared on all sides, outputs are compared before anything is timed, rounds are interleaved.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from sentence_transformers import SentenceTransformer

from benchmarks.machine import describe
from benchmarks.onnx_peer import OnnxPeer, Rows
from benchmarks.texts import lognormal_lengths
from gpu_worker.allocator import keep_freed_memory
from gpu_worker.computing import Part
from gpu_worker.engine import ModelEngine
from gpu_worker.models.loading import load
from gpu_worker.models.source import EMBEDDED
from gpu_worker.placement import Dtype, Placement
from gpu_worker.planning import FairQueue
from shared.jobs import Encode, Job
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind

RESULT = Path(__file__).parent / "results" / "engine-cpu.json"
Texts = Sequence[npt.NDArray[np.int32]]
Side = Callable[[Texts], Rows]
PAUSE = 0.05  # so that one side's spinning threads are asleep before the next begins


def lognormal_texts(count: int, seed: int, mean: float = 126.0, longest: int = 512) -> Texts:
    """Token ids with special tokens; lengths lognormal (sigma 0.8) with that mean after cutting at `longest`."""
    generator = np.random.default_rng(seed)
    ends = ([101], [102])
    return [
        np.concatenate([ends[0], generator.integers(1996, 29_000, length - 2), ends[1]]).astype(np.int32)
        for length in lognormal_lengths(count, seed, mean, longest)
    ]


def ours(dtype: Dtype) -> Side:
    """The worker's engine with its own planning, without services."""
    model = load("minilm", Placement.choose("cpu", dtype), max_tokens=512)
    engine = ModelEngine(model)
    work = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)

    def embed(texts: Texts) -> Rows:
        tokens = RaggedTokens(ids=b"".join(text.tobytes() for text in texts), lengths=tuple(map(len, texts)))
        progress = engine.open(Job(id=1, work=work, tokens=tokens))
        budget = model.placement.step_tokens
        queue = FairQueue(quantum=budget // 8)
        queue.add(1, progress.costs)
        while len(queue):
            share = queue.next_step(budget)[0]
            engine.step([Part(progress=progress, start=share.start, stop=share.stop)])
        result = progress.result()
        assert result.dense is not None
        return np.frombuffer(result.dense.data, dtype=np.float32).reshape(len(texts), -1)

    return embed


def sentence_transformers(path: str, batch_size: int) -> Side:
    """What `encode` does after tokenising: sort by length, longest first, pad each batch, run its modules."""
    model = SentenceTransformer(path, device="cpu")

    def embed(texts: Texts) -> Rows:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        rows = np.empty((len(texts), 384), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                rows[chosen] = model(_padded([texts[each] for each in chosen]))["sentence_embedding"].numpy()
        return rows

    return embed


def _padded(texts: Texts) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text), 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def best_of(side: Callable[[int], Side], sizes: Sequence[int], texts: Texts) -> tuple[int, Side]:
    """The fastest batch size, by the better of two runs each."""
    timed = []
    for size in sizes:
        made = side(size)
        made(texts)
        timed.append((min(seconds(made, texts) for _ in range(2)), size))
    size = min(timed)[1]
    return size, side(size)


def seconds(side: Side, texts: Texts) -> float:
    time.sleep(PAUSE)
    start = time.perf_counter()
    side(texts)
    return time.perf_counter() - start


def measure(rounds: int, seed: int, threads: int) -> dict[str, Any]:
    import importlib.util

    spec = importlib.util.find_spec(EMBEDDED)
    assert spec is not None
    assert spec.origin is not None
    path = str(Path(spec.origin).parent / "model")
    torch.set_num_threads(threads)
    texts = lognormal_texts(64, seed)
    with tempfile.TemporaryDirectory() as folder:
        onnx = OnnxPeer(path, Path(folder), threads)

    def onnx_side(size: int) -> Side:
        def embed(given: Texts) -> Rows:
            onnx.batch_size = size
            return onnx.embed(given)

        return embed

    st_size, st_tuned = best_of(lambda size: sentence_transformers(path, size), (1, 2, 4, 8, 16), texts)
    onnx_size, onnx_best = best_of(onnx_side, (1, 2, 4, 8, 16, 32), texts)
    sides: dict[str, Side] = {
        "selvage float32": ours("float32"),
        "sentence-transformers default (32)": sentence_transformers(path, 32),
        f"sentence-transformers tuned ({st_size})": st_tuned,
        f"onnxruntime float32 best batch ({onnx_size})": onnx_best,
        "selvage bfloat16": ours("bfloat16"),
    }
    exact = sides["sentence-transformers default (32)"](texts)
    agreement = {name: float(np.abs(side(texts) - exact).max()) for name, side in sides.items()}
    for name, difference in agreement.items():
        assert difference < (2e-2 if "bfloat16" in name else 1e-5), f"{name} differs by {difference}"
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in track(range(rounds), description="rounds"):
        for name, side in sides.items():
            times[name].append(seconds(side, texts))
    return report(texts, times, agreement, rounds, seed, threads)


def report(
    texts: Texts, times: dict[str, list[float]], agreement: dict[str, float], rounds: int, seed: int, threads: int
) -> dict[str, Any]:
    tokens = sum(map(len, texts))
    base = {name: float(np.median(measured)) for name, measured in times.items()}
    return {
        "benchmark": "engine-cpu",
        "workload": {"texts": len(texts), "tokens": tokens, "longest": max(map(len, texts)), "seed": seed},
        "rounds": rounds,
        "threads": threads,
        "machine": describe(),
        "sides": {
            name: {
                "median_seconds": round(base[name], 5),
                "lower_quartile_seconds": round(float(np.quantile(measured, 0.25)), 5),
                "tokens_per_second": round(tokens / base[name]),
                "largest_difference": agreement[name],
                "times": [round(each, 5) for each in measured],
            }
            for name, measured in times.items()
        },
        "selvage_float32_is_faster_by": {
            name: round(base[name] / base["selvage float32"], 2) for name in base if "selvage" not in name
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every side (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    keep_freed_memory()
    outcome = measure(arguments.rounds, arguments.seed, arguments.threads)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    for side_name, figures in outcome["sides"].items():
        print(f"{side_name:48} {figures['tokens_per_second']:8,} tokens/s")
    print(json.dumps(outcome["selvage_float32_is_faster_by"], indent=1))
