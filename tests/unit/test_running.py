"""Programs that start members end them when they are told to stop."""

import signal
import subprocess
import sys

import pytest

from harness.environment import ROOT, python_path

PROGRAM = """
import asyncio
from harness.serving import run

async def main():
    try:
        print("started", flush=True)
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)  # as members are awaited
        print("stopped what it started", flush=True)

run(main())
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_a_program_stop_what_it_started(number: signal.Signals, status: int) -> None:
    """And the exit status tells that it was ended; there is no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(number)
    said, errors = process.communicate()
    assert (said, errors, process.returncode) == ("stopped what it started\n", "", status)
