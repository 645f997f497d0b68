"""Ctrl-C while a worker loads ends it at once: no traceback, and nothing that it waits for is waited for."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from harness.environment import ROOT, python_path
from support.forked import Nursery
from support.references import eventually


@pytest.mark.parametrize("flags", [(), ("--check",)], ids=["serving", "checking"])
async def test_ctrl_c_while_a_worker_loads(flags: tuple[str, ...], tmp_path: Path, nursery: Nursery) -> None:
    """It hangs in the first file of the model, which is a pipe."""
    pipe, writing = tmp_path / "config.json", list[int]()
    os.mkfifo(pipe)
    worker = await nursery.start(
        *(sys.executable, "-m", "gpu_worker", "--listen", "127.0.0.1:0", "--model", str(tmp_path), *flags),
        cwd=ROOT,
        env={"PYTHONPATH": python_path()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    def is_read() -> bool:
        try:
            writing.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads it yet
            return False
        return True

    await eventually(is_read)
    os.kill(worker.pid, signal.SIGINT)
    output, errors = await worker.communicate()
    assert worker.returncode == 130
    assert "Traceback" not in output.decode() + errors.decode()
    assert [line for line in errors.decode().splitlines() if not line.startswith("{")] == []  # logs are JSON
    os.close(writing[0])
