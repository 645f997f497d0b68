"""Starts the client processes, lets them begin at one instant, shows progress, merges what they counted."""

import asyncio
import json
import os
import pickle
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Plan
from benchmarks.load.processor_time import cpu_seconds_of
from benchmarks.load.tally import Tally
from harness.environment import ROOT, python_path

AHEAD = 0.1
"""Seconds between the word to begin and the beginning."""
SHOWN_EVERY = 0.2


class LoadFailed(RuntimeError):
    """A run that cannot be counted; the message says why."""


class ClientProcess:
    """One of them, from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.calls = 0

    @classmethod
    async def start(cls, plan: Plan, number: int, parts: int) -> "ClientProcess":
        """Started and told its plan."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.load.client"),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        client = cls(process)
        await client._write(pickle.dumps((plan, number, parts)))
        return client

    async def begin(self, at: float) -> None:
        """Says when."""
        await self._write(f"{at!r}\n".encode())

    async def until(self, word: str) -> Any:
        """What it says under that word; progress is noted on the way. Raises LoadFailed."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if word in said:
                return said[word]
            if "failed" in said:
                raise LoadFailed(said["failed"])
            self.calls = said["calls"]
        raise LoadFailed(f"a client process ended with status {await self._process.wait()} before it was {word}")

    async def end(self) -> None:
        """Waits for the process, or ends it where it has more to do."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        await self._process.stdin.drain()


async def generate(
    plan: Plan, *, processes: int = 0, watch: Mapping[str, int] | None = None, title: str = ""
) -> Outcome:
    """One run. `watch`: further processes whose CPU seconds count, by name. `title`: a progress bar with it, or none.

    `processes` 0: two, or a quarter of the cores where that is more, but never more than clients. Raises LoadFailed.
    """
    parts = process_count(plan, processes)
    async with AsyncExitStack() as cleanup:
        clients = []
        for number in range(parts):
            clients.append(await ClientProcess.start(plan, number, parts))
            cleanup.push_async_callback(clients[-1].end)
        learnt = await asyncio.gather(*(client.until("ready") for client in clients))
        tokens = settled_tokens(plan, {index: count for each in learnt for index, count in each})
        pids = {f"client {number}": client.pid for number, client in enumerate(clients)} | dict(watch or {})
        return await _run(plan, clients, tokens, pids, title)


def process_count(plan: Plan, asked: int = 0) -> int:
    """How many client processes a plan gets."""
    pattern = plan.pattern
    most = pattern.clients if isinstance(pattern, Closed) else 64
    return max(1, min(asked or max(2, (os.cpu_count() or 1) // 4), most, pattern.requests or most))


def settled_tokens(plan: Plan, learnt: Mapping[int, int]) -> dict[int, int]:
    """What each request costs, as promised and as learnt. Raises LoadFailed where our own services say otherwise."""
    promised = {index: each.tokens for index, each in enumerate(plan.requests) if each.tokens is not None}
    for index, count in learnt.items():
        if plan.address.counts and promised.get(index, count) != count:
            raise LoadFailed(f"request {index} is made to have {promised[index]} tokens, the server counted {count}")
    return {index: count for index, count in learnt.items() if count} | promised


async def _run(
    plan: Plan, clients: list[ClientProcess], tokens: dict[int, int], pids: Mapping[str, int], title: str
) -> Outcome:
    timed = plan.pattern.requests is None
    begin = time.monotonic() + AHEAD
    start = begin + plan.warmup * timed
    stop = start + (plan.pattern.seconds or 0)
    for client in clients:
        await client.begin(begin)
    done = asyncio.gather(*(client.until("done") for client in clients))
    shown = asyncio.create_task(_show(plan, clients, begin, title))
    try:
        await asyncio.wait({done}, timeout=start - time.monotonic())
        if done.done():  # too early: a client failed
            await done
        before = cpu_seconds_of(pids)
        # A closed loop's answers count until `stop`; all others wait for their last answer, and so does their time.
        fixed = timed and isinstance(plan.pattern, Closed)
        await asyncio.wait({done}, timeout=stop - time.monotonic() if fixed else None)
        if done.done():
            await done
        after = cpu_seconds_of(pids)
        told = await done
    finally:
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)
    kinds = [request.kind for request in plan.requests]
    tally = Tally(kinds)
    for each in told:
        tally.add(Tally.from_json(each, kinds))
    window = (stop if fixed else max(tally.last, stop)) - start
    return Outcome(
        seconds=tally.last - (tally.before or begin) if fixed and tally.last else window,
        window=window,
        tally=tally,
        tokens=tokens,
        cpu_seconds={name: after[name] - before[name] for name in pids},
    )


async def _show(plan: Plan, clients: list[ClientProcess], begin: float, title: str) -> None:
    """A progress bar until cancelled: by time where a duration was asked for, else by answers."""
    pattern = plan.pattern
    total = pattern.requests or plan.warmup + (pattern.seconds or 0)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[calls]} answers"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True, disable=not title) as progress:
        task = progress.add_task(title, total=total, calls=0)
        while True:
            calls = sum(client.calls for client in clients)
            reached = calls if pattern.requests else max(0.0, time.monotonic() - begin)
            progress.update(task, completed=reached, calls=calls)
            await asyncio.sleep(SHOWN_EVERY)
