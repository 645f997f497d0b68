"""What a few steps launch, by PyTorch's profiler: its table of kernels, and figures of a step."""

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
"""Name of steps in the trace."""
RAN = {"cuda": ("kernel", "gpu_memcpy", "gpu_memset"), "cpu": ("cpu_op",)}
NAMED = ("gpu_user_annotation", "user_annotation")
CALLS = ("cuda_runtime", "cuda_driver")
"""Categories of what runs on the device, of what ran of a named step, and of what the host asks the device for."""
LAUNCHES = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")
"""Parts of the names of calls that launch something. A graph is one launch."""


def figures(events: Sequence[dict[str, Any]], device: str) -> dict[str, float]:
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
    return figures(events, device.type), profiler.key_averages().table(by, 60, max_name_column_width=120)
