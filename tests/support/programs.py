"""Released clients, each a program in a venv of its own that answers questions: `tests/clients/`."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.environment import ROOT


class Program:
    """One process for many questions: it takes seconds to import its packages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._one_at_a_time = process, asyncio.Lock()

    async def ask(self, does: str, url: str, key: str = "any", **asked: Any) -> dict[str, Any]:
        """What it tells: of a success or of an error."""
        question = {"does": does, "url": url, "key": key, **asked}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._one_at_a_time:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            told: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return told


def python_of(client: str) -> Path:
    """That of the venv which `make clients` sets up."""
    return ROOT / ".venv-clients" / client / "bin" / "python"


@asynccontextmanager
async def program(client: str, environment: Mapping[str, str]) -> AsyncIterator[Program]:
    """`tests/clients/<client>_client.py`, until the end of the block; `environment` is all that it sees beside PATH."""
    process = await asyncio.create_subprocess_exec(
        *(str(python_of(client)), "-I", str(ROOT / "tests" / "clients" / f"{client}_client.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        env={"PATH": os.environ["PATH"], **environment},
    )
    yield Program(process)
    process.terminate()  # it would clear what it imported for seconds
    await process.wait()
