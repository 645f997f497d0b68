"""Requests made to take memory: each is refused or answered, and either process stays small and healthy."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from harness.environment import ROOT
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2
from shared.server.options import channel_options
from shared.value_codec import varint
from support.random_models import random_model
from support.references import Calls, attached, dense, eventually, load_of
from support.scraping import forget_peak, memory
from tei.v1 import tei_pb2

MEBIBYTE = 1024 * 1024
MOST = 500 * MEBIBYTE
"""Above what a process has when it idles."""
LONGEST_PROBE = 1.0
"""Seconds of the frontend: what others of the machine do meanwhile does not count, see probing.py."""
EMBED, DETOKENIZE, MAX_SIM = (
    f"/selvage.v1.{method}" for method in ("EmbeddingService/Embed", "ModelService/Detokenize", "RankingService/MaxSim")
)
STREAM = "/selvage.v1.EmbeddingService/EmbedStream"
CHECK, WATCH = (f"/grpc.health.v1.Health/{method}" for method in ("Check", "Watch"))
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3", "w4"])


class Target:
    """A pair whose frontend is asked for its health all the while."""

    def __init__(self, pair: Stack, probing: asyncio.subprocess.Process) -> None:
        self.pair, self._probing = pair, probing

    def address(self, module: str = "frontend_service") -> str:
        return next(member.address for member in self.pair.members if member.module == module)

    def channel(self, module: str = "frontend_service", *options: tuple[str, int]) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address(module), options=[*channel_options(), *options])

    async def longest_probe(self) -> float:
        """Seconds, since it was last asked for."""
        assert self._probing.stdin is not None
        assert self._probing.stdout is not None
        self._probing.stdin.write(b"\n")
        return float(await self._probing.stdout.readline())

    async def bears(self, bomb: Callable[[], Awaitable[object]]) -> None:
        """It takes no process much memory, keeps no probe waiting, and calls are answered after it."""
        calls = Calls(self.pair.channel)
        expected = dense(await calls.embedding.Embed(REQUEST))
        idle = {member: memory(member, "VmRSS") for member in self.pair.members}
        for member in self.pair.members:
            forget_peak(member)
        await self.longest_probe()
        await bomb()
        seconds = await self.longest_probe()
        taken = {member.module: (memory(member, "VmHWM") - idle[member]) // MEBIBYTE for member in self.pair.members}
        print("MiB above idle:", taken, "longest probe:", seconds)
        assert abs(dense(await calls.embedding.Embed(REQUEST)) - expected).max() < 1e-6
        assert seconds <= LONGEST_PROBE
        assert max(taken.values()) * MEBIBYTE <= MOST, taken


@pytest.fixture(scope="module")
async def target() -> AsyncIterator[Target]:
    """Services of their own: what these tests leave in memory would hide what others take."""
    async with stack(random_model("tiny-bert")) as pair:
        await Calls(pair.channel).embedding.Embed(REQUEST)
        frontend = pair.frontends[0]
        probing = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "tests" / "support" / "probing.py"), frontend.address, str(frontend.pid)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        yield Target(pair, probing)
        assert probing.stdin is not None
        probing.stdin.close()  # it ends with its input
        await probing.wait()


async def outcomes(calls: Sequence[Awaitable[Any]]) -> Counter[str]:
    """How often each status came."""

    async def one(call: Awaitable[Any]) -> str:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    return Counter(await asyncio.gather(*map(one, calls)))


def ids(size: int) -> bytes:
    """A message with one list of so many token ids."""
    return b"\n" + varint(size + len(varint(size)) + 1) + b"\n" + varint(size) + b"\1" * size


GIANT = embedding_pb2.EmbedRequest(texts=["w1 w2 " * 2500] * 1048)
"""15 MiB, the largest request, of 15 kB a text."""
LONG_TEXT = "w1 w2 " * (15 * MEBIBYTE // 6)
REFUSED, FULL = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
BOMBS: dict[str, tuple[str, Callable[[], bytes], int, set[str]]] = {
    "compressed messages are not unpacked": (EMBED, lambda: bytes(60 * MEBIBYTE), 4, {"UNIMPLEMENTED"}),
    "fifteen MiB of ids to detokenize": (DETOKENIZE, lambda: ids(15 * MEBIBYTE), 1, {REFUSED}),
    "messages over the limit are not read": (EMBED, lambda: bytes(60 * MEBIBYTE), 16, {FULL}),
    "eight million empty texts, counted before they are parsed": (EMBED, lambda: b"\n\0" * 8_000_000, 1, {REFUSED}),
    "giants, of which some are taken": (EMBED, GIANT.SerializeToString, 64, {REFUSED, FULL}),
    "giant texts that may be cut": (
        *(EMBED, embedding_pb2.EmbedRequest(texts=[LONG_TEXT], truncate=True).SerializeToString),
        *(4, {REFUSED, FULL}),
    ),
}
"""The method, what makes the message, how many are sent at once, and the statuses that may come."""


@pytest.mark.parametrize("name", BOMBS)
async def test_messages(target: Target, name: str) -> None:
    method, make, count, allowed = BOMBS[name]
    message = make()
    compression = grpc.Compression.Gzip if name.startswith("compressed") else None

    async def bomb() -> None:
        async with target.channel() as channel:
            send = channel.unary_unary(method)
            statuses = await outcomes([send(message, compression=compression, timeout=240) for _ in range(count)])
        assert set(statuses) <= allowed
        assert statuses[FULL] or count < 16

    await target.bears(bomb)


async def test_sixteen_streams_that_send_a_giant_each(target: Target) -> None:
    """15 MiB each, on as many streams as may be open."""
    message = embedding_pb2.EmbedStreamRequest(id=1, request=GIANT).SerializeToString()
    assert 14 * MEBIBYTE < len(message) < 16 * MEBIBYTE

    async def bomb() -> None:
        async with target.channel() as channel:
            method = channel.stream_stream(STREAM, response_deserializer=embedding_pb2.EmbedStreamResponse.FromString)

            async def one() -> None:
                async for reply in method(iter([message]), timeout=240):
                    assert reply.error.reason in {"OVERLOADED", "INPUT_TOO_LONG"}, reply.error

            statuses = await outcomes([one() for _ in range(16)])
        assert set(statuses) <= {"OK", FULL, "INTERNAL"}  # grpc.aio's own word where it still wrote

    await target.bears(bomb)


@pytest.mark.parametrize("method", ["Embed/EmbedStream", "Rerank/RerankStream"])
async def test_sixteen_streams_of_the_other_contract(target: Target, method: str) -> None:
    """One giant text each, or 59 MiB of texts that nobody knows the end of."""
    if method == "Embed/EmbedStream":
        messages = [tei_pb2.EmbedRequest(inputs=LONG_TEXT)]
    else:
        messages = [tei_pb2.RerankStreamRequest(query="w1", text="w1 w2 " * (MEBIBYTE // 7))] * 59
    serialised = [each.SerializeToString() for each in messages]

    async def bomb() -> None:
        async with target.channel() as channel:

            async def one() -> None:
                call = channel.stream_stream(f"/tei.v1.{method}")()
                with suppress(asyncio.InvalidStateError, TimeoutError):  # it was refused meanwhile; it waits for more
                    for message in serialised:
                        await call.write(message)
                    async with asyncio.timeout(3):
                        await call.read()
                call.cancel()

            statuses = await outcomes([one() for _ in range(16)])
        assert set(statuses) <= {"OK", REFUSED, FULL, "INTERNAL"}, statuses

    await target.bears(bomb)


async def test_replies_that_nobody_reads(target: Target) -> None:
    """Sixteen of 61 MiB: what is unread is bounded."""
    sides = [
        vectors_pb2.MultiVectors(dimensions=1, lengths=[1] * count, data=bytes(4 * count)) for count in (1000, 16_000)
    ]
    request = ranking_pb2.MaxSimRequest(queries=sides[0], documents=sides[1]).SerializeToString()
    slow = (("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0))

    async def bomb() -> None:
        async with target.channel("frontend_service", *slow) as channel:
            # on the wire a unary call, but nothing is read before it is asked for
            method = channel.stream_stream(MAX_SIM)
            unread = [method() for _ in range(16)]
            for call in unread:
                with suppress(asyncio.InvalidStateError):  # it was refused meanwhile
                    await call.write(request)
                    await call.done_writing()
            await asyncio.sleep(2.5)  # nothing tells when all that comes unread has come
            for call in unread:
                call.cancel()

    await target.bears(bomb)

    async def idle() -> bool:
        return (await load_of(target.pair)).queued_jobs == 0

    await eventually(idle)


async def test_thirty_thousand_jobs_in_a_message(target: Target) -> None:
    """The link ends with the limit named; other frontends notice nothing."""

    async def bomb() -> None:
        async with attached(target.address("gpu_worker")) as link:
            jobs = [worker_pb2.Job(id=number, sequences=0) for number in range(30_000)]
            await link.call.write(worker_pb2.AttachRequest(fingerprint=link.fingerprint, jobs=jobs))
            with pytest.raises(grpc.aio.AioRpcError, match="the limit is 4096") as raised:
                await link.answers(1)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    await target.bears(bomb)


@pytest.mark.parametrize("module", ["frontend_service", "gpu_worker"])
async def test_health_of_services_with_giant_names(target: Target, module: str) -> None:
    """Ten of 15 MiB, one after the other and at once, by calls that stay open where a name is taken: none is."""
    raw = health_pb2.HealthCheckRequest(service="w" * (15 * MEBIBYTE)).SerializeToString()

    async def bomb() -> None:
        async with target.channel(module) as channel:
            for method in (CHECK, WATCH):
                check = channel.unary_stream(method)
                assert [await outcomes([check(raw).read()]) for _ in range(10)] == [{REFUSED: 1}] * 10
                statuses = await outcomes([check(raw).read() for _ in range(10)])
                assert set(statuses) <= {REFUSED, FULL, "INTERNAL"}, statuses  # as above

    await target.bears(bomb)


@pytest.mark.parametrize("module", ["frontend_service", "gpu_worker"])
async def test_thousands_of_watches(target: Target, module: str) -> None:
    """Over several connections: there are places for so many, and all others are refused."""

    async def bomb() -> None:
        async with AsyncExitStack() as opened:
            channels = [await opened.enter_async_context(target.channel(module)) for _ in range(4)]
            watches = [channel.unary_stream(WATCH)(b"") for channel in channels for _ in range(1500)]
            statuses = await outcomes([watch.read() for watch in watches])
            assert statuses == {"OK": 1024, FULL: 6000 - 1024}
            for watch in watches:
                watch.cancel()

    await target.bears(bomb)


async def test_open_watches_do_not_hold_up_the_end() -> None:
    """Of either process, which would wait half a minute for calls: both are told, and end of their own."""
    async with stack(
        random_model("tiny-bert"), worker={"drain-seconds": 600}, frontend={"drain-seconds": 600}
    ) as running:
        for member in reversed(running.members):
            async with grpc.aio.insecure_channel(member.address, options=channel_options()) as channel:
                watches = [channel.unary_stream(WATCH)(b"") for _ in range(32)]
                assert [await watch.read() for watch in watches] == [b"\10\1"] * 32
                assert await member.stop() == 0
                assert [await watch.read() for watch in watches] == [b"\10\2"] * 32
                assert not [line for line in member.log if "cut short" in line]


async def test_a_frontend_that_stands_still_is_seen(target: Target) -> None:
    """The control of the measure: whatever else runs, a frontend that is stopped for so long is too slow."""
    await target.longest_probe()
    os.kill(target.pair.frontends[0].pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)
    os.kill(target.pair.frontends[0].pid, signal.SIGCONT)
    assert await target.longest_probe() > LONGEST_PROBE
