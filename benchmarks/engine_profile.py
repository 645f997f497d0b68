"""Where the engine's time goes on a processor, and what it could reach at most: `python -m benchmarks.engine_profile`.

Per mix of lengths: the share of linear layers, of attention with all that it calls, of normalisation and of all else,
by PyTorch's profiler, and the GFLOP/s that the first two reach. Beside them the processor's own: a large product
by the same packed layer. `linear_alone` is how many tokens/s there would be if nothing but the linear layers took time:
what no server of this model in this number format gets past on this processor, unless its products are faster.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.engine_alone import ours
from benchmarks.machine import describe
from benchmarks.minilm import NAME
from benchmarks.mixes import COUNTS, MIXES, Texts
from gpu_worker.attention.interface import PackedAttention, Terms
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.model.linear import PrepackedLinear
from gpu_worker.model.loading import Model, load
from gpu_worker.model.trunk import PackedTrunk
from gpu_worker.ragged.batch import RaggedBatch

RESULT = Path(__file__).parent / "results" / "engine-profile-cpu.json"
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
OPERATORS = {"linear layers": "mkldnn::_linear_pointwise", "normalisation": "aten::native_layer_norm"}
ATTENTION, REST = "attention", "the rest"
PRODUCT = (4096, 1536, 1536)
"""Rows, width in and out of the product that stands for the processor."""
PROFILED, TIMED = 3, 7


def flops(model: Model, texts: Texts) -> dict[str, float]:
    """Floating point operations of the linear layers and of attention's two products, for all texts once."""
    config: Any = model.trunk.model.config
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, squares = sum(map(len, texts)), sum(len(text) ** 2 for text in texts)
    return {
        "linear layers": 2.0 * tokens * layers * (4 * hidden**2 + 2 * hidden * inner),
        "attention": 4.0 * squares * layers * hidden,
    }


class Marked:
    """An attention that the profiler sees as one thing."""

    def __init__(self, attention: PackedAttention) -> None:
        self.attention, self.name = attention, attention.name

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        with record_function(ATTENTION):
            return self.attention(query, key, value, batch, terms)


def shares(embed: Callable[[], object], model: Model) -> dict[str, float]:
    """Of the time that the profiler sees, by part."""
    trunk = model.trunk
    assert isinstance(trunk, PackedTrunk)
    usual, trunk.attention = trunk.attention, Marked(trunk.attention)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(PROFILED):
                embed()
    finally:
        trunk.attention = usual
    events = {event.key: event for event in found.key_averages()}
    spent = {part: float(events[operator].self_cpu_time_total) for part, operator in OPERATORS.items()}
    spent[ATTENTION] = float(events[ATTENTION].cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in events.values())
    return {part: each / whole for part, each in spent.items()} | {REST: 1 - sum(spent.values()) / whole}


def reachable(dtype: Dtype) -> float:
    """GFLOP/s of one large product."""
    rows, width, out = PRODUCT
    layer = PrepackedLinear(nn.Linear(width, out).to(getattr(torch, dtype)))
    states = torch.randn(rows, width).to(getattr(torch, dtype))
    with torch.inference_mode():
        fastest = min(_seconds(partial(layer, states)) for _ in range(TIMED))
    return 2 * rows * width * out / fastest / 1e9


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(mix: str, dtype: Dtype, model: Model, peak: float, seed: int) -> dict[str, Any]:
    """One mix in one number format."""
    texts = MIXES[mix](COUNTS[mix], seed)
    embed = partial(ours(model), texts, 0)
    embed()
    median = float(np.median([_seconds(embed) for _ in range(TIMED)]))
    found, work, tokens = shares(embed, model), flops(model, texts), sum(map(len, texts))
    return {
        "mix": mix,
        "dtype": dtype,
        "attention": model.trunk.way,
        "tokens_per_second": round(tokens / median),
        "shares": {part: round(share, 3) for part, share in found.items()},
        "gflops": {part: round(work[part] / (found[part] * median) / 1e9) for part in work},
        "product_gflops": round(peak),
        "linear_alone_tokens_per_second": round(tokens / (work["linear layers"] / peak / 1e9)),
    }


def lines(case: Mapping[str, Any]) -> str:
    """A case for people."""
    told = ", ".join(f"{part} {share:.0%}" for part, share in case["shares"].items())
    return (
        f"{case['mix']:10} {case['dtype']:9} {case['tokens_per_second']:7,} tokens/s; {told}; "
        f"GFLOP/s {case['gflops']} of {case['product_gflops']}; "
        f"linear layers alone {case['linear_alone_tokens_per_second']:,} tokens/s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="of the texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the worker does
    cases = []
    for kind in DTYPES:
        chosen, best = load("minilm", Placement.choose("cpu", kind), max_tokens=512), reachable(kind)
        for name in MIXES:
            cases.append(measure(name, kind, chosen, best, given.seed))
            print(lines(cases[-1]), flush=True)
    outcome = {
        "benchmark": "engine-profile-cpu",
        "model": NAME,
        "seed": given.seed,
        "threads": given.threads,
        "machine": describe(),
        "cases": cases,
    }
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(outcome, indent=1) + "\n")
