"""Both services on the device: a worker and its frontends, a published workload. Skipped where a package is missing."""

import asyncio
import subprocess
import sys
from functools import partial
from typing import Any

import torch

from benchmarks.accelerator.report import Row
from benchmarks.ours import written
from benchmarks.workloads import Scale, named

LOADS = ("colbert-rerank", "short", "token-embed", "instruct-burst")
"""Workloads in order of importance; the last one comes all at once."""
FRONTENDS, WARMUP = {"tiny": 1, "small": 1, "full": 4}, 1.0
NEEDED = "import benchmarks.services, frontend_service.__main__, gpu_worker.__main__, harness.stack"


def services(device: torch.device, scale: Scale, name: str, seconds: float, limits: Row) -> list[Row]:
    """Measures rates, p50 and p99, and CPU a request."""
    probe = subprocess.run([sys.executable, "-c", NEEDED], capture_output=True, text=True)
    if probe.returncode:
        return [{"workload": name, "skipped": probe.stderr.strip().splitlines()[-1]}]
    from benchmarks.services import Server, generated
    from harness.stack import stack

    workload = named(scale)[name]
    clients = workload.in_flight[0]
    options: dict[str, Any] = {"scale": scale, "clients": clients, "seconds": seconds, "warmup": WARMUP}
    options["requests"] = clients if name == "instruct-burst" else 0

    async def run(model: str) -> dict[str, float]:
        async with stack(model, frontends=FRONTENDS[scale], worker={"device": str(device)}) as pair:
            address = ",".join(frontend.address for frontend in pair.frontends)
            server = Server(address=address, pids={"worker": pair.worker.pid, "frontend": pair.frontends[0].pid})
            return await asyncio.to_thread(partial(generated, server, name, **options))

    with written(workload.model, str(device)) as folder:
        measured = asyncio.run(run(folder))
    figures = {figure: float(f"{value:.4g}") for figure, value in measured.items()}
    return [{"workload": name, "model": workload.model, "in flight": clients, **figures}]
