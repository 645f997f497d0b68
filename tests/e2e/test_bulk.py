"""`python -m selvage.bulk` against real processes: its vectors are those of Embed, whatever is killed meanwhile."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.environment import ROOT, python_path
from harness.stack import Stack, stack
from selvage import AsyncClient

LONG = "w1 " * 700
"""Over the limit of the model."""
BAD = {7: LONG, 751: LONG, 752: 5, 1499: "x" * 5_000_000}
TEXTS = [BAD.get(i, f"w{i % 97} w{i * 7 % 90} " * (1 + i % 9)) for i in range(1500)]
GOOD = [i for i in range(len(TEXTS)) if i not in BAD]


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"id-{i}", "text": each}) + "\n" for i, each in enumerate(TEXTS)))
    return str(path)


async def command(source: str, folder: Path, *flags: str) -> asyncio.subprocess.Process:
    shared = ("--id-column", "id", "--rows-per-shard", "125", "--skip-errors", "--batch-size", "16")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "selvage.bulk", source, "--output", str(folder), *shared, *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": python_path()},
    )


async def ended(process: asyncio.subprocess.Process) -> str:
    """What it printed; it must have ended well, and silently."""
    output, told = await process.communicate()
    assert (process.returncode, told.decode()) == (0, "")
    return output.decode()


def shards(folder: Path) -> int:
    """How many are there."""
    return len(list(folder.glob("part-*")))


async def finished(folder: Path, count: int) -> None:
    """Waits until so many shards are."""
    while shards(folder) < count:  # noqa: ASYNC110 - another process's files
        await asyncio.sleep(0.005)


async def embedded(pair: Stack) -> Any:
    """[texts, dimensions] of the good texts, by the client."""
    async with AsyncClient(pair.frontends[-1].address, timeout=120) as client:
        return await client.embed([TEXTS[i] for i in GOOD])


def check(folder: Path, expected: Any) -> None:
    """Each row once, in order, with its id and its vector; the others are listed with their places."""
    table = pq.read_table(folder)
    assert table["row"].to_pylist() == GOOD
    assert table["id"].to_pylist() == [f"id-{i}" for i in GOOD]
    assert np.abs(np.array(table["dense"].to_pylist(), dtype=np.float32) - expected).max() < 1e-6
    bad = [json.loads(line) for path in sorted(folder.glob("_bad-*")) for line in path.read_text().splitlines()]
    assert [(each["row"], each["line"], each["id"]) for each in bad] == [(i, i + 1, f"id-{i}") for i in BAD]
    assert [each["reason"].partition(":")[0] for each in bad] == [
        *("INPUT_TOO_LONG", "INPUT_TOO_LONG", "column 'text' is of type int, not a string", "LIMIT_EXCEEDED")
    ]
    assert [path.name for path in folder.iterdir() if "draft" in path.name] == []


async def test_killed_in_the_middle_it_goes_on(tiny: Stack, source: str, tmp_path: Path) -> None:
    """kill -9, twice: vectors, ids and order of an undisturbed run; bad rows and 5 MB of text beside them."""
    folder, target = tmp_path / "o", ("--target", tiny.frontends[0].address)
    for count in (2, 6):
        process = await command(source, folder, *target)
        await finished(folder, count)
        process.kill()
        assert await process.wait() == -9
    assert shards(folder) < 12
    told = await ended(await command(source, folder, *target))
    assert told.startswith("1,496 vectors in 12 shards")
    check(folder, await embedded(tiny))
    assert "there was nothing left to do" in await ended(await command(source, folder, *target))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "frontend"])
async def test_a_service_that_is_killed_loses_nothing(killed: str, source: str, tmp_path: Path) -> None:
    """Two frontends share the work; one of them, or the worker behind both, goes and comes back."""
    async with stack("random:tiny-bert", frontends=2) as pair:
        folder = tmp_path / "o"
        targets = [flag for each in pair.frontends for flag in ("--target", each.address)]
        process = await command(source, folder, *targets)
        await finished(folder, 3)
        member = pair.worker if killed == "worker" else pair.frontends[0]
        await member.kill()
        assert shards(folder) < 12
        await member.restart()
        await ended(process)
        await pair.worker.wait_ready()
        check(folder, await embedded(pair))
