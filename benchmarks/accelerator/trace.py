"""What a few steps launch, as PyTorch's profiler saw it: its own table of kernels, and figures of a step."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

STEP = "step"
"""How steps are named in the trace."""
RAN = {"cuda": ("kernel", "gpu_memcpy", "gpu_memset"), "cpu": ("cpu_op",)}
NAMED = ("gpu_user_annotation", "user_annotation")
CALLS = ("cuda_runtime", "cuda_driver")
"""Categories of what runs on the device, of what ran of a named step, and of what the host asks the device for."""
LAUNCHES = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")
"""In the names of the calls that launch something. A graph is one launch."""


def figures(events: Sequence[dict[str, Any]], device: str) -> dict[str, float]:
    """Of a step, from events as Chrome's trace format has them, on a device of this type."""
    ran = sorted((each for each in events if each.get("cat") in RAN[device]), key=lambda each: each["ts"])
    named = [[each for each in events if each.get("cat") == kind and each["name"] == STEP] for kind in NAMED]
    steps = sorted((each["ts"], each["ts"] + each["dur"]) for each in named[0] or named[1])  # by the device's clock
    calls = [each["name"] for each in events if each.get("cat") in CALLS]
    waited, end = 0.0, ran[0]["ts"]
    for each in ran:
        waited, end = waited + max(0.0, each["ts"] - end), max(end, each["ts"] + each["dur"])
    between = [max(0.0, later - former) for (_, former), (later, _) in pairwise(steps)]
    told = {
        "kernels": len(ran) / len(steps),
        "launches": sum(any(part in name for part in LAUNCHES) for name in calls) / len(steps),
        "ms": sum(stop - start for start, stop in steps) / len(steps) / 1e3,
        "idle before the next ms": float(np.median(between)) / 1e3 if between else 0.0,
        "device idle %": 100 * waited / (end - ran[0]["ts"]),
    }
    return {name: round(value, 3) for name, value in told.items()}


def traced(work: Callable[[], object], device: torch.device) -> tuple[dict[str, float], str]:
    """Figures, and the table of the longest kernels, of what the profiler sees while `work` runs."""
    there = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if there else [])]) as found:
        work()
        if there:
            torch.cuda.synchronize(device)
    with TemporaryDirectory() as folder:
        found.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    by = f"self_{'device' if there else 'cpu'}_time_total"
    return figures(events, device.type), found.key_averages().table(by, 60, max_name_column_width=120)
