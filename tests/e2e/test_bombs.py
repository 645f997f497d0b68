"""Requests made to take memory: each is refused or answered, and either process stays small and healthy."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from harness.environment import ROOT
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2
from shared.server.options import channel_options
from support.random_models import random_model
from support.references import Calls, attached, dense, eventually, load_of
from support.scraping import forget_peak, memory
from tei.v1 import tei_pb2

MEBIBYTE = 1024 * 1024
MOST = 500 * MEBIBYTE
"""Above what a process has when it idles."""
LONGEST_PROBE = 2.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0
"""Seconds, on a machine that is as fast as usual; with nothing else to do a second, beside other tests two."""
EMBED, DETOKENIZE, MAX_SIM = (
    f"/selvage.v1.{method}" for method in ("EmbeddingService/Embed", "ModelService/Detokenize", "RankingService/MaxSim")
)
STREAM = "/selvage.v1.EmbeddingService/EmbedStream"
CHECK, WATCH = (f"/grpc.health.v1.Health/{method}" for method in ("Check", "Watch"))
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3", "w4"])


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Stack]:
    """Of their own: what they leave in memory would hide what others take."""
    async with stack(random_model("tiny-bert")) as running:
        await Calls(running.channel).embedding.Embed(REQUEST)
        yield running


@dataclass(frozen=True, slots=True)
class Probed:
    """How long a probe waited; how many times slower than usual the machine was then; how long it once stood still, and
    for how long it was stopped."""

    seconds: float
    slowness: float
    stood: float
    stopped: float

    @property
    def in_time(self) -> bool:
        """As it would have been with the machine to itself; four times slower is no excuse any more."""
        return self.seconds - max(self.stopped, min(self.stood, 1.0)) <= LONGEST_PROBE * min(self.slowness, 4.0)

    @property
    def of_the_host(self) -> bool:
        """Whether the machine did less than usual."""
        return self.slowness > 2.5 or self.stood > 0.4 or self.stopped > 0


@asynccontextmanager
async def probed(address: str) -> AsyncIterator[Callable[[], Awaitable[list[Probed]]]]:
    """Probes all the while; what it gives ends that and tells the longest waits."""
    command = (sys.executable, str(ROOT / "tests" / "support" / "probing.py"), address)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # it has begun

    async def end() -> list[Probed]:
        process.terminate()
        told, _ = await process.communicate()
        return [Probed(*map(float, line.split())) for line in told.splitlines()]

    try:
        yield end
    finally:
        with suppress(ProcessLookupError):  # where a test failed, it still runs
            process.kill()
        await process.wait()


async def is_harmless(pair: Stack, bomb: Callable[[], Awaitable[object]]) -> None:
    """It takes no process much memory, keeps no probe waiting, and calls are answered after it.

    A host that takes the cores away keeps probes waiting too, and whoever would look at the memory. Where the probes
    tell of that, harm may be the host's. Where they do not, once may be chance and twice is ours: more tries than were
    harmful must be harmless then.
    """
    unexplained, harmless, seen = 0, 0, list[Any]()
    for _ in range(6):
        harm, explained = await _harm(pair, bomb)
        seen += harm
        harmless += not harm
        unexplained += bool(harm) and not explained
        assert unexplained < 2, seen
        if harmless > unexplained:
            return
    pytest.fail(f"harm in too many tries: {seen}")


async def _harm(pair: Stack, bomb: Callable[[], Awaitable[object]]) -> tuple[list[Any], bool]:
    """Probes that waited for too long, and the MiB of each process where one took too many; and whether a probe tells
    that the machine was slow or stood still meanwhile."""
    calls = Calls(pair.channel)
    expected = dense(await calls.embedding.Embed(REQUEST))
    idle = {member: memory(member, "VmRSS") for member in pair.members}
    for member in pair.members:
        forget_peak(member)
    async with probed(pair.frontends[0].address) as end_probing:
        await bomb()
        probes = await end_probing()
    taken = {member.module: (memory(member, "VmHWM") - idle[member]) // MEBIBYTE for member in pair.members}
    print("MiB above idle:", taken, probes)
    assert abs(dense(await calls.embedding.Embed(REQUEST)) - expected).max() < 1e-6
    late: list[Any] = [each for each in probes if not each.in_time]
    return late + [taken] * (max(taken.values()) * MEBIBYTE > MOST), any(each.of_the_host for each in probes)


async def outcomes(calls: Sequence[Awaitable[Any]]) -> Counter[str]:
    """How often each status came."""

    async def one(call: Awaitable[Any]) -> str:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    return Counter(await asyncio.gather(*map(one, calls)))


@asynccontextmanager
async def sender(pair: Stack, method: str) -> AsyncIterator[Callable[..., Any]]:
    """Calls a method with raw bytes."""
    async with grpc.aio.insecure_channel(pair.frontends[0].address, options=channel_options()) as channel:
        yield channel.unary_unary(method)


@pytest.mark.parametrize("count", [4, pytest.param(128, marks=pytest.mark.slow)])
async def test_compressed_messages_are_not_unpacked(pair: Stack, count: int) -> None:
    zeros = bytes(60 * MEBIBYTE)

    async def bomb() -> None:
        async with sender(pair, EMBED) as send:
            found = await outcomes([send(zeros, compression=grpc.Compression.Gzip) for _ in range(count)])
        assert found == {"UNIMPLEMENTED": count}

    await is_harmless(pair, bomb)


async def test_fifteen_mebibytes_of_ids_to_detokenize(pair: Stack) -> None:
    size = 15 * MEBIBYTE
    ids = b"\n" + _varint(size) + b"\1" * size
    message = b"\n" + _varint(len(ids)) + ids

    async def bomb() -> None:
        async with sender(pair, DETOKENIZE) as send:
            assert set(await outcomes([send(message)])) <= {"INVALID_ARGUMENT"}

    await is_harmless(pair, bomb)


async def test_messages_over_the_limit_are_not_read(pair: Stack) -> None:
    """60 MiB each: gRPC refuses them by the length that they begin with."""

    async def bomb() -> None:
        async with sender(pair, EMBED) as send:
            found = await outcomes([send(bytes(60 * MEBIBYTE), timeout=240) for _ in range(16)])
        assert found == {"RESOURCE_EXHAUSTED": 16}

    await is_harmless(pair, bomb)


async def test_eight_million_empty_texts(pair: Stack) -> None:
    """Two bytes each on the wire; counted before they are parsed."""

    async def bomb() -> None:
        async with sender(pair, EMBED) as send:
            assert await outcomes([send(b"\n\0" * 8_000_000)]) == {"INVALID_ARGUMENT": 1}

    await is_harmless(pair, bomb)


async def test_many_giant_requests_at_once(pair: Stack) -> None:
    """15 MiB each, 64 at once: some are taken, the others are told to come again."""
    message = embedding_pb2.EmbedRequest(texts=["w1 w2 " * 2500] * 1048).SerializeToString()
    assert 14 * MEBIBYTE < len(message) < 16 * MEBIBYTE

    async def bomb() -> None:
        async with sender(pair, EMBED) as send:
            found = await outcomes([send(message, timeout=240) for _ in range(64)])
        assert set(found) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
        assert found["RESOURCE_EXHAUSTED"]

    await is_harmless(pair, bomb)


async def test_four_giant_texts_that_may_be_cut(pair: Stack) -> None:
    """15 MiB each: a text over --max-text-bytes is refused before it is tokenised."""
    message = embedding_pb2.EmbedRequest(texts=["w1 w2 " * (15 * MEBIBYTE // 6)], truncate=True).SerializeToString()

    async def bomb() -> None:
        async with sender(pair, EMBED) as send:
            replies = [send(message, timeout=240) for _ in range(4)]
            assert set(await outcomes(replies)) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}

    await is_harmless(pair, bomb)


async def test_sixteen_streams_that_send_a_giant_each(pair: Stack) -> None:
    """15 MiB each, on as many streams as may be open."""
    batch = embedding_pb2.EmbedRequest(texts=["w1 w2 " * 2500] * 1048)
    message = embedding_pb2.EmbedStreamRequest(id=1, request=batch).SerializeToString()
    assert 14 * MEBIBYTE < len(message) < 16 * MEBIBYTE

    async def bomb() -> None:
        async with grpc.aio.insecure_channel(pair.frontends[0].address, options=channel_options()) as channel:
            method = channel.stream_stream(STREAM, response_deserializer=embedding_pb2.EmbedStreamResponse.FromString)

            async def one() -> None:
                async for reply in method(iter([message]), timeout=240):
                    assert reply.error.reason in {"OVERLOADED", "INPUT_TOO_LONG"}, reply.error

            found = await outcomes([one() for _ in range(16)])
        assert set(found) <= {"OK", "RESOURCE_EXHAUSTED", "INTERNAL"}  # grpc.aio's own word where it still wrote

    await is_harmless(pair, bomb)


@pytest.mark.parametrize("method", ["Embed/EmbedStream", "Rerank/RerankStream"])
async def test_sixteen_streams_of_the_other_contract(pair: Stack, method: str) -> None:
    """One giant text each, or 59 MiB of texts that nobody knows the end of."""
    if method == "Embed/EmbedStream":
        messages = [tei_pb2.EmbedRequest(inputs="w1 w2 " * (15 * MEBIBYTE // 6))]
    else:
        messages = [tei_pb2.RerankStreamRequest(query="w1", text="w1 w2 " * (MEBIBYTE // 7))] * 59
    serialised = [each.SerializeToString() for each in messages]

    async def bomb() -> None:
        async with grpc.aio.insecure_channel(pair.frontends[0].address, options=channel_options()) as channel:

            async def one() -> None:
                call = channel.stream_stream(f"/tei.v1.{method}")()
                with suppress(asyncio.InvalidStateError, TimeoutError):  # it was refused meanwhile; it waits for more
                    for message in serialised:
                        await call.write(message)
                    async with asyncio.timeout(3):
                        await call.read()
                call.cancel()

            found = await outcomes([one() for _ in range(16)])
        assert set(found) <= {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"}, found

    await is_harmless(pair, bomb)


async def test_replies_that_nobody_reads(pair: Stack) -> None:
    """Sixteen of 61 MiB: what is unread is bounded."""
    sides = [
        vectors_pb2.MultiVectors(dimensions=1, lengths=[1] * count, data=bytes(4 * count)) for count in (1000, 16_000)
    ]
    request = ranking_pb2.MaxSimRequest(queries=sides[0], documents=sides[1]).SerializeToString()
    options = [*channel_options(), ("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]

    async def bomb() -> None:
        async with grpc.aio.insecure_channel(pair.frontends[0].address, options=options) as channel:
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

    await is_harmless(pair, bomb)

    async def idle() -> bool:
        return (await load_of(pair)).queued_jobs == 0

    await eventually(idle)


async def test_thirty_thousand_jobs_in_a_message(pair: Stack) -> None:
    """The link ends with the limit named; other frontends notice nothing."""

    async def bomb() -> None:
        async with attached(pair.worker.address) as link:
            jobs = [worker_pb2.Job(id=number, sequences=0) for number in range(30_000)]
            await link.call.write(worker_pb2.AttachRequest(fingerprint=link.fingerprint, jobs=jobs))
            with pytest.raises(grpc.aio.AioRpcError, match="the limit is 4096") as raised:
                await link.answers(1)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    await is_harmless(pair, bomb)


@pytest.mark.parametrize("method", [CHECK, WATCH])
@pytest.mark.parametrize("module", ["frontend_service", "gpu_worker"])
async def test_health_of_services_with_giant_names(pair: Stack, module: str, method: str) -> None:
    """Ten of 15 MiB, one after the other and at once, by calls that stay open where a name is taken: none is."""
    [address] = [member.address for member in pair.members if member.module == module]
    raw = health_pb2.HealthCheckRequest(service="w" * (15 * MEBIBYTE)).SerializeToString()

    async def bomb() -> None:
        async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
            check = channel.unary_stream(method)
            assert [await outcomes([check(raw).read()]) for _ in range(10)] == [{"INVALID_ARGUMENT": 1}] * 10
            found = await outcomes([check(raw).read() for _ in range(10)])
        assert set(found) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"}, found  # as above

    await is_harmless(pair, bomb)


@pytest.mark.parametrize("module", ["frontend_service", "gpu_worker"])
async def test_thousands_of_watches(pair: Stack, module: str) -> None:
    """Over several connections: there are places for so many, and all others are refused."""
    [address] = [member.address for member in pair.members if member.module == module]

    async def bomb() -> None:
        async with AsyncExitStack() as opened:
            channels = [
                await opened.enter_async_context(grpc.aio.insecure_channel(address, options=channel_options()))
                for _ in range(4)
            ]
            watches = [channel.unary_stream(WATCH)(b"") for channel in channels for _ in range(1500)]
            found = await outcomes([watch.read() for watch in watches])
            assert found == {"OK": 1024, "RESOURCE_EXHAUSTED": 6000 - 1024}
            for watch in watches:
                watch.cancel()

    await is_harmless(pair, bomb)


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


@pytest.mark.slow
async def test_a_frontend_that_stands_still_is_seen(pair: Stack) -> None:
    """The control: three seconds are too long, unless the machine itself is three times slower than usual."""
    async with probed(pair.frontends[0].address) as end_probing:
        os.kill(pair.frontends[0].pid, signal.SIGSTOP)
        await asyncio.sleep(3)
        os.kill(pair.frontends[0].pid, signal.SIGCONT)
        probes = await end_probing()
    longest = max(probes, key=lambda each: each.seconds)
    assert longest.seconds > 2.9
    assert not longest.in_time or longest.slowness > 2.5 or longest.stood > 0.4, longest


def _varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])
