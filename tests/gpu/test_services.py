"""Who holds the device while both services run; where their packages are."""

import asyncio
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("grpc_health", reason="a machine with an accelerator may have PyTorch and little else")
pytest.importorskip("grpc_reflection")
pytest.importorskip("grpc_status")
pytest.importorskip("pydantic_settings")
pytest.importorskip("structlog")

from harness.stack import stack

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
    async with stack("random:tiny-bert", frontends=2, worker={"device": "cuda:0"}) as pair:
        frontends = [mapped(each.pid) for each in pair.frontends]
        return mapped(pair.worker.pid), frontends, holders() - before


def test_the_worker_alone_holds_the_device() -> None:
    """Frontends have neither its libraries nor a context on it. A driver in a container may tell of no process."""
    worker, frontends, came = asyncio.run(looked_at())
    assert worker == list(LIBRARIES)
    assert frontends == [[], []]
    assert came in (0, 1)
