"""Programs of Ray and Daft, and the processes in which their actors live."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.environment import ROOT, python_path

TITLES = {
    "ray": ("ray::MapWorker(MapBatches(Embedder))", "ray::MapWorker(MapBatches(Embedder)).submit"),
    "daft_on_ray": ("ray::UDFActor", "ray::UDFActor.eval_input"),
    "daft": ("daft.execution.udf_worker", "daft.execution.udf_worker"),
}
"""How each names the processes of its actors: all of them, and one that has work. Daft's own has nothing to tell by."""


def python_of(name: str) -> Path:
    """That of the venv which `make clusters` sets up."""
    return ROOT / ".venv-clusters" / name.partition("_")[0] / "bin" / "python"


@asynccontextmanager
async def program(name: str, home: Path, **asked: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """`tests/clusters/<name>_program.py`, under way; at the end of the block it has ended, whatever happened."""
    alone = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "true", "RAY_AUTH_MODE": "disabled"}
    process = await asyncio.create_subprocess_exec(
        *(str(python_of(name)), str(ROOT / "tests" / "clusters" / f"{name.partition('_')[0]}_program.py")),
        json.dumps(asked),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=alone | quiet,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def below(root: int) -> dict[int, str]:
    """Titles of all processes that a process has begun, and of those that these have, by their number."""
    parents, titles = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text()
            titles[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(path.name)] = int(status.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for number in parents:
        above = number
        while above in parents and above != root:
            above = parents[above]
        if above == root and number != root:
            found[number] = titles.get(number, "")
    return found


def actors(name: str, process: asyncio.subprocess.Process, *, at_work: bool) -> set[int]:
    """The numbers of its actors' processes."""
    title = TITLES[name][at_work]
    return {number for number, told in below(process.pid).items() if title in told}
