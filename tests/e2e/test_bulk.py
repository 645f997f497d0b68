"""`python -m selvage.bulk` against real processes: its vectors are those of Embed, whatever is killed meanwhile."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.environment import ROOT, python_path
from harness.stack import Stack, stack
from selvage import AsyncClient
from support.random_models import random_model

BAD: tuple[tuple[bytes, str], ...] = (
    (b'"text": "%s"}' % (b"w1 " * 700), "INPUT_TOO_LONG"),
    (b'"text": "\xff"}', "column 'text' is not valid UTF-8 at byte 0"),
    (b'"text": "%s"}' % (b"x" * 2_000_000), "LIMIT_EXCEEDED"),
)
"""How a bad line ends, and the reason that is listed, up to a colon."""
TEXTS = [f"w{i % 97} w{i * 7 % 90} " * (1 + i % 9) for i in range(1500)]
BAD_ROWS = {row: BAD[place % len(BAD)] for place, row in enumerate(range(107, len(TEXTS), 99))}
"""One in a hundred."""
GOOD = [i for i in range(len(TEXTS)) if i not in BAD_ROWS]


HEARS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "selvage.bulk", *sys.argv[1:]])
"""
"""The command, also where the tests run in a shell's background, whose programs ignore Ctrl-C."""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "a.jsonl"
    ends = [json.dumps(text).encode() for text in TEXTS]
    lines = [BAD_ROWS[i][0] if i in BAD_ROWS else b'"text": %s}' % end for i, end in enumerate(ends)]
    path.write_bytes(b"".join(b'{"id": "id-%04d", %s\n' % (i, line) for i, line in enumerate(lines)))
    return str(path)


async def command(source: str, folder: Path, *flags: str) -> asyncio.subprocess.Process:
    shared = ("--id-column", "id", "--rows-per-shard", "125", "--batch-size", "16", "--skip-errors")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HEARS_CTRL_C, source, "--output", str(folder), *shared, *flags),
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
    assert table["id"].to_pylist() == [f"id-{i:04d}" for i in GOOD]
    assert np.abs(np.array(table["dense"].to_pylist(), dtype=np.float32) - expected).max() < 1e-6
    bad = [json.loads(line) for path in sorted(folder.glob("_bad-*")) for line in path.read_text().splitlines()]
    assert [(each["row"], each["file_row"]) for each in bad] == [(i, i + 1) for i in BAD_ROWS]
    assert [each["reason"].partition(":")[0] for each in bad] == [reason for _, reason in BAD_ROWS.values()]
    assert [each["id"] for each in bad] == [f"id-{row:04d}" for row in BAD_ROWS]
    assert [path.name for path in folder.iterdir() if "draft" in path.name] == []


async def test_killed_in_the_middle_it_goes_on(tiny: Stack, source: str, tmp_path: Path) -> None:
    """kill -9 and Ctrl-C: vectors, ids and order of an undisturbed run; 1 % of bad rows, 2 MB of text among
    them."""
    folder, target = tmp_path / "o", ("--target", tiny.frontends[0].address)
    slowly = ("--in-flight", "1", "--batch-size", "2")  # else it may be done before we look
    for count, how, status in ((2, signal.SIGKILL, -9), (4, signal.SIGINT, 130)):
        process = await command(source, folder, *target, *slowly)
        await finished(folder, count)
        process.send_signal(how)
        told = (await process.communicate())[1].decode()
        assert process.returncode == status
        assert told == ("Stopped; the same command goes on.\n" if how == signal.SIGINT else "")
    assert shards(folder) < 12
    told = await ended(await command(source, folder, *target))
    assert told.startswith(f"{len(GOOD):,} vectors in 12 shards")
    check(folder, await embedded(tiny))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "frontend"])
async def test_a_service_that_is_killed_loses_nothing(killed: str, source: str, tmp_path: Path) -> None:
    """Two frontends share the work; one of them, or the worker behind both, goes and comes back."""
    async with stack(random_model("tiny-bert"), frontends=2) as pair:
        folder = tmp_path / "o"
        targets = [flag for each in pair.frontends for flag in ("--target", each.address)]
        process = await command(source, folder, *targets, "--batch-size", "4")  # so that it is not done before the kill
        await finished(folder, 3)
        member = pair.worker if killed == "worker" else pair.frontends[0]
        await member.kill()
        assert shards(folder) < 12
        await member.restart()
        await ended(process)
        await pair.worker.wait_ready()
        check(folder, await embedded(pair))
