"""Mixed calls, some of them abandoned, some of them wrong: each ends, and nothing is left behind.

The long form has every kind of client at once. It takes SELVAGE_SOAK_SECONDS (60; half an hour before a release)
and a minute before them:

    SELVAGE_SOAK_SECONDS=1800 .venv/bin/python -m pytest -s -m slow tests/e2e/test_soak.py
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from harness.member import ServiceProcess
from harness.stack import Stack, stack
from selvage.v1 import model_pb2
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest
from support.mischief import MEBIBYTE, mischief, some_call, text
from support.random_models import random_model
from support.references import Calls, eventually, load_of
from support.scraping import forget_peak, memory, scrape
from support.traffic import traffic
from tei.v1 import tei_pb2, tei_pb2_grpc

CALLS = 120
SECONDS = float(os.environ.get("SELVAGE_SOAK_SECONDS", "60"))
WARM_UP = 60.0
"""Seconds before that, whose peaks do not count: libraries keep a kernel for each new shape, and a heap its holes."""
GROWTH = 1.05
"""Of a process, from the first third of the time to the last: of the least that it takes and of its peak."""
COINCIDENCE = 64.0
"""MiB that a peak may be higher by: whether a giant comes while another is read is chance."""
LATE = {"DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"}
"""The last: told that there is no time."""
METRICS = {"metrics": "127.0.0.1:0"}
DIMENSIONS = 64
EXPECTED = {"DEADLINE_EXCEEDED", "OVERLOADED"}
"""Reasons of jobs that failed as they should."""


async def one(calls: Calls, generator: random.Random, outcomes: Counter[str], *, sparse: bool = False) -> None:
    """A call of some kind for somebody; one in five is impatient, one in ten given up."""
    method, request = some_call(calls, generator, sparse=sparse)
    impatient = generator.random() < 0.2
    metadata = [
        ("selvage-key", f"tenant {generator.randrange(5)}"),
        ("selvage-priority", generator.choice(["interactive", "default", "bulk"])),
    ]
    call = method(request, timeout=generator.uniform(0.001, 0.2) if impatient else 120, metadata=metadata)
    if generator.random() < 0.1:
        asyncio.get_running_loop().call_later(generator.uniform(0, 0.05), call.cancel)
    outcomes[(await call.code()).name] += 1


def unexpected(member: ServiceProcess) -> list[str]:
    """Lines of its log that nobody wants to see: bugs, traces, jobs that failed for no reason of ours."""
    failed = [each for each in member.events if each["event"] == "job failed" and each["reason"] not in EXPECTED]
    worse = [each for each in member.events if each["level"] == "error"]
    return [str(each) for each in failed + worse] + [line for line in member.log if not line.startswith("{")]


async def idle(pair: Stack) -> bool:
    """Whether the worker holds nothing."""
    load = await load_of(pair)
    return (load.queued_tokens, load.queued_jobs) == (0, 0)


async def test_every_call_ends_and_nothing_is_left_behind() -> None:
    """Answered, refused, out of time or cancelled; then the queue is empty and the services as good as new."""
    generator, outcomes = random.Random(11), Counter[str]()
    async with stack(random_model("tiny-bert"), frontends=2) as pair:
        clients = [Calls(channel) for channel in pair.channels]
        gate = asyncio.Semaphore(32)

        async def paced(number: int) -> None:
            async with gate:
                await one(clients[number % 2], generator, outcomes)

        await asyncio.gather(*(paced(number) for number in range(CALLS)))
        await eventually(lambda: idle(pair))
        await clients[0].model.GetModel(model_pb2.GetModelRequest())
        bugs = [line for member in pair.members for line in unexpected(member)]
    assert bugs == []
    assert outcomes.total() == CALLS
    assert set(outcomes) <= {"OK", "INVALID_ARGUMENT"} | LATE
    assert outcomes["OK"] > CALLS / 2


class Memory:
    """Of each process in each third of the time, in MiB: peaks of half a second each."""

    def __init__(self, pair: Stack) -> None:
        names = ["worker", *(f"frontend {number}" for number in range(len(pair.frontends)))]
        self._members = dict(zip(names, pair.members, strict=True))
        self._of: dict[str, list[list[float]]] = {name: [[], [], []] for name in names}

    async def watch(self) -> None:
        """For as long as the soak takes."""
        start = asyncio.get_running_loop().time() + WARM_UP
        await asyncio.sleep(WARM_UP)
        for member in self._members.values():
            forget_peak(member)
        while (passed := asyncio.get_running_loop().time() - start) < SECONDS:
            third = min(int(3 * passed / SECONDS), 2)
            for name, member in self._members.items():
                self._of[name][third].append(round(memory(member, "VmHWM") / MEBIBYTE, 1))
                forget_peak(member)
            await asyncio.sleep(0.5)

    def told(self, of: Callable[[list[float]], float]) -> dict[str, list[float]]:
        """By process, `of` each third."""
        return {name: [of(third) for third in thirds] for name, thirds in self._of.items()}


@asynccontextmanager
async def callers(pair: Stack, outcomes: Counter[str], count: int = 8) -> AsyncIterator[None]:
    """They ask both frontends until the end of the block, where every call that has begun ends."""
    generator, stopped = random.Random(12), asyncio.Event()

    async def caller(calls: Calls) -> None:
        while not stopped.is_set():
            await one(calls, generator, outcomes, sparse=True)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(caller(Calls(pair.channels[number % 2])))
        try:
            yield
        finally:
            stopped.set()


@asynccontextmanager
async def streams(pair: Stack, outcomes: Counter[str], count: int = 2) -> AsyncIterator[None]:
    """EmbedStreams of both contracts one after the other, one in five given up; of the others each batch, or text, is
    answered once."""
    generator, stopped = random.Random(14), asyncio.Event()

    async def followed(call: Any, take: Callable[[Any], None]) -> bool:
        """Whether it has ended well."""
        if generator.random() < 0.2:
            asyncio.get_running_loop().call_later(generator.uniform(0, 0.5), call.cancel)
        try:
            async for reply in call:
                take(reply)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            outcomes[(await call.code()).name] += 1
            return False
        outcomes["ended"] += 1
        return True

    async def stream(calls: Calls) -> None:
        sizes = [generator.randint(1, 8) for _ in range(50)]
        batches = [
            EmbedStreamRequest(id=number, request=EmbedRequest(texts=[text(generator) for _ in range(size)]))
            for number, size in enumerate(sizes)
        ]
        seen = Counter[int]()

        def take(reply: Any) -> None:
            seen[reply.id] += 1
            right = reply.response.dense.count == sizes[reply.id]
            outcomes["OK" if right else reply.error.reason or "WRONG"] += 1

        if await followed(calls.embedding.EmbedStream(iter(batches), timeout=120), take):
            assert seen == Counter(range(len(batches)))

    async def tei_stream(stub: Any) -> None:
        words = [text(generator) or "w1" for _ in range(200)]
        found: list[int] = []

        def take(reply: Any) -> None:
            found.append(reply.metadata.compute_chars)
            outcomes["OK" if len(reply.embeddings) == DIMENSIONS else "WRONG"] += 1

        if await followed(stub.EmbedStream((tei_pb2.EmbedRequest(inputs=each) for each in words), timeout=120), take):
            assert found == list(map(len, words))

    async def caller(channel: grpc.aio.Channel) -> None:
        while not stopped.is_set():
            await stream(Calls(channel))
            await tei_stream(tei_pb2_grpc.EmbedStub(channel))
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(caller(pair.channels[number % 2]))
        try:
            yield
        finally:
            stopped.set()


async def answered_once(member: ServiceProcess) -> bool:
    """Whether every call that a process has begun, but for links and watches, has ended, and been counted once."""
    page = await scrape(member)
    return page.total("grpc_server_started_total", grpc_type="unary") == page.total(
        "grpc_server_handled_total", grpc_type="unary"
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * (WARM_UP + SECONDS) + 300)
async def test_everything_at_once_for_long() -> None:
    """No wrong answer, no bug, no memory that grows; every call ends once, and the queue is empty afterwards."""
    outcomes, streamed = Counter[str](), Counter[str]()
    async with stack(random_model("tiny-bge-m3"), worker=METRICS, frontends=2, frontend=METRICS) as pair:
        async with (
            traffic(pair.channel, callers=2) as checked,
            callers(pair, outcomes),
            streams(pair, streamed),
            mischief(pair.frontends[1].address, 13) as mischievous,
        ):
            taken = Memory(pair)
            await taken.watch()
        await eventually(lambda: idle(pair))
        for member in pair.frontends:
            await eventually(lambda member=member: answered_once(member))  # type: ignore[misc]
        await Calls(pair.channel).model.GetModel(model_pb2.GetModelRequest())
        warnings = Counter(
            each["event"] for member in pair.members for each in member.events if each["level"] == "warning"
        )
        bugs = [line for member in pair.members for line in unexpected(member)]
        assert [await member.stop() for member in reversed(pair.members)] == [0, 0, 0]
    print(f"\n{SECONDS:g} s: {dict(outcomes)}; with known answers {dict(checked.outcomes)}, {len(checked.wrong)} wrong")
    print(f"batches of streams: {dict(streamed)}")
    print("\n".join(f"{name}: {dict(found)}" for name, found in mischievous.items()))
    least, peaks = taken.told(min), taken.told(max)
    print(f"MiB by third, at least: {least}, at most: {peaks}; warnings: {dict(warnings)}")
    assert bugs == []
    assert (checked.wrong, checked.hung) == ([], [])
    assert set(checked.outcomes) <= {"OK", "RESOURCE_EXHAUSTED"}
    assert set(outcomes) <= {"OK", "INVALID_ARGUMENT"} | LATE
    assert outcomes["OK"] > outcomes.total() / 2
    assert set(streamed) <= {"OK", "ended", "OVERLOADED", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"}
    assert streamed["ended"]
    for name in least:
        assert least[name][2] <= GROWTH * least[name][0], name
        assert peaks[name][2] <= GROWTH * peaks[name][0] + COINCIDENCE, name
