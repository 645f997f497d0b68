"""Who holds the device while both services run; where their packages are."""

import asyncio
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("grpc_health", reason="a machine with an accelerator may have PyTorch and little else")
pytest.importorskip("grpc_reflection")
pytest.importorskip("grpc_status")
pytest.importorskip("pydantic_settings")
pytest.importorskip("structlog")

from harness.stack import stack
from support.random_models import random_model

pytestmark = pytest.mark.gpu

LIBRARIES = ("libcuda.so", "libtorch")
"""The driver's library, without which nobody reaches a device, and PyTorch's own."""
QUERY = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")


def mapped(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in LIBRARIES if name in maps]


def holders() -> int:
    """How many processes the driver tells of."""
    return len([line for line in subprocess.check_output(QUERY, text=True).splitlines() if line.strip()])


async def looked_at() -> tuple[list[str], list[list[str]], int]:
    before = holders()
    async with stack(random_model("tiny-bert"), frontends=2, worker={"device": "cuda:0"}) as pair:
        frontends = [mapped(each.pid) for each in pair.frontends]
        return mapped(pair.worker.pid), frontends, holders() - before


def test_the_worker_alone_holds_the_device() -> None:
    """Frontends have neither its libraries nor a context on it. A driver in a container may tell of no process."""
    worker, frontends, came = asyncio.run(looked_at())
    assert worker == list(LIBRARIES)
    assert frontends == [[], []]
    assert came in (0, 1)


MEMORY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
CONTEXT = 100
"""MiB that a process takes of its device at least."""


def taken() -> list[int]:
    return [int(line) for line in subprocess.check_output(MEMORY, text=True).splitlines() if line.strip()]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has one device")
def test_a_worker_for_each_device() -> None:
    """Each takes memory of its own, and the frontend attaches to both."""

    async def looked_at() -> list[int]:
        before = taken()
        async with stack(random_model("tiny-bert"), devices=["cuda:0", "cuda:1"]) as pair:
            wanted, attached = {each.address for each in pair.workers}, set[str]()
            async with asyncio.timeout(30):
                while attached != wanted:
                    await asyncio.sleep(0.1)
                    events = pair.frontends[0].events
                    attached = {each["target"] for each in events if each["event"] == "worker ready"}
            return [now - then for now, then in zip(taken(), before, strict=True)]

    assert all(each > CONTEXT for each in asyncio.run(looked_at())[:2])
