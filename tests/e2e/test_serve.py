"""`make serve`: what it tells when a process that it started ends by itself, and how it ends then."""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.serving import serve
from support.random_models import random_model
from support.references import eventually

ANY = "127.0.0.1:0"


class Serving:
    """It runs in this process; its members are processes as always."""

    def __init__(self, printed: pytest.CaptureFixture[str], devices: Sequence[str] = ()) -> None:
        self.task = asyncio.create_task(serve(random_model("tiny-bert"), ANY, ANY, devices=devices))
        self.said = ""
        self._printed = printed

    async def until(self, words: str) -> None:
        """Returns when it has said these."""

        def has_said() -> bool:
            self.said += self._printed.readouterr().out
            return words in self.said

        await eventually(has_said)

    def pid(self, name: str) -> int:
        found = re.search(rf"{name} \S+ \(process (\d+)\)", self.said)
        assert found is not None
        return int(found[1])


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("frontend", signal.SIGTERM, "status 0: it was told to stop by somebody else"),
        ("worker 2", signal.SIGKILL, "status -9: SIGKILL"),
    ],
)
async def test_a_process_that_ends_is_told_and_ends_the_rest(
    name: str, number: signal.Signals, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name, status and what that means, at once; the exit status is not 0. A worker for each device."""
    devices = ("cpu", "cpu") if name == "worker 2" else ()
    serving = Serving(capsys, devices)
    await serving.until("Ready")
    os.kill(serving.pid(name), number)
    await serving.until(f"The {name} ended by itself with {told}")
    assert await serving.task == 1
    for each in ("worker", "frontend", *(["worker 2"] if devices else [])):
        with pytest.raises(ProcessLookupError):
            os.kill(serving.pid(each), 0)


async def test_a_second_signal_leaves_no_process_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever cannot wait for the drain ends it; members have sessions of their own and would stay for ever."""
    serving = Serving(capsys)
    await serving.until("Ready")
    pids = [serving.pid(name) for name in ("worker", "frontend")]
    os.kill(pids[0], signal.SIGSTOP)  # it does not drain
    signal.raise_signal(signal.SIGTERM)
    await serving.until("Stopping ...")

    def ended() -> bool:
        if not serving.task.done():
            signal.raise_signal(signal.SIGTERM)
        return serving.task.done()

    await eventually(ended)
    assert serving.task.cancelled()
    await eventually(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False
