"""The MaxSim kernel on CUDA: the published shapes, our times, and the share of what memory allows.

Needs torch, Triton and numpy only. Documents lie in device memory; a time is that of the whole call (tables made and
shipped, kernel launched) and, apart, that of the kernel alone, by CUDA events over many launches, the median of rounds.
The limit is the time to read the documents once at the bandwidth that a copy reaches on the same device.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.device_limits import bandwidth, microseconds
from gpu_worker.maxsim import reference
from gpu_worker.maxsim.comparison import Comparison, Texts
from shared.vectors import Layout

RESULT = Path(__file__).parent / "results" / "maxsim-gpu.json"
WIDTH, QUERY = 128, 32
SHAPES = ((1, 1000, 300, 25), (1, 5000, 300, 105), (1, 5000, 1024, 360), (32, 50, 180, 25), (32, 100, 256, 60))
"""Queries, documents of each, tokens of a document, goal in microseconds on an H200."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def case(shape: tuple[int, int, int, int], dtype: str, device: torch.device, peak: float) -> dict[str, Any]:
    """Every query against documents of its own, in one call."""
    from gpu_worker.maxsim.kernel import TritonMaxSim

    queries, documents, tokens, goal = shape
    generator = torch.Generator().manual_seed(0)
    kind, count = DTYPES[dtype], queries * documents * tokens
    asked = F.normalize(torch.randn(queries * QUERY, WIDTH, generator=generator), dim=1).to(device, kind)
    found = F.normalize(torch.randn(count, WIDTH, device=device), dim=1).to(kind)
    texts = Texts.end_to_end(np.full(queries * documents, tokens))
    rows = Texts.end_to_end(np.full(queries, QUERY))
    comparisons = [
        Comparison(
            queries=rows.part(number, number + 1),
            documents=texts.part(number * documents, (number + 1) * documents),
            layout=Layout.MATRIX,
        )
        for number in range(queries)
    ]
    maxsim = TritonMaxSim()
    maxsim.warm(device, kind, WIDTH)
    scores = maxsim(asked, found, comparisons).cpu()
    some = Comparison(queries=rows.part(0, 1), documents=texts.part(0, 20), layout=Layout.MATRIX)
    expected = reference.compare(asked[:QUERY].cpu(), found[: 20 * tokens].cpu(), [some])
    assert (scores[:20] - expected).abs().max() < 1e-3
    whole = microseconds(lambda: maxsim(asked, found, comparisons), 20, device)
    bare = microseconds(maxsim.prepared(asked, found, comparisons), 20, device)
    limit = count * WIDTH * kind.itemsize / peak * 1e6
    return {
        "queries": queries,
        "documents": documents,
        "tokens": tokens,
        "dtype": dtype,
        "call_microseconds": round(whole, 1),
        "kernel_microseconds": round(bare, 1),
        "limit_microseconds": round(limit, 1),
        "share_of_limit": round(limit / bare, 3),
        "goal_microseconds": goal,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maxsim_gpu", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    peak = bandwidth(device)
    started = time.time()
    cases = [case(shape, dtype, device, peak) for dtype in DTYPES for shape in SHAPES]
    outcome = {
        "benchmark": "maxsim-gpu",
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "bandwidth_bytes_per_second": round(peak),
        "seconds": round(time.time() - started, 1),
        "cases": cases,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    for each in cases:
        print(
            f"{each['queries']:3} x {each['documents']:5,} x {each['tokens']:5,} {each['dtype']:9} "
            f"{each['kernel_microseconds']:9,.1f} us of the kernel, {each['call_microseconds']:9,.1f} us of the call, "
            f"{each['share_of_limit']:.0%} of the limit, goal {each['goal_microseconds']} us"
        )
