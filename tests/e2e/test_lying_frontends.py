"""Frontends that lie to one worker process: it refuses each, and says so once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from harness.member import ServiceProcess
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import InvalidInput, error_classes
from shared.server.options import WORKER_SERVICES, channel_options
from shared.value_codec import MESSAGE_BYTES
from support.frontend_lies import ENDING, FIRST, HARMLESS, OF_CALLERS, WRONG, Message, hello, one
from support.random_models import random_model
from support.scraping import forget_peak, memory

GROWTH = 300 * 1024 * 1024
"""Most bytes of memory that all lies together may cost the worker at any moment."""
REASONS = {reason for reason, error in error_classes().items() if issubclass(error, InvalidInput)}


@dataclass(frozen=True, slots=True)
class Deceived:
    """A worker, and what it took of memory when it was idle."""

    worker: ServiceProcess
    channel: grpc.aio.Channel
    idle: int

    def warnings(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log about what a frontend sent."""
        told = (event for event in self.worker.events if event["event"] == "a frontend's message makes no sense")
        return [event for event in told if f"frontend {name!r}" in event["name"]]

    @asynccontextmanager
    async def attached(self, name: str) -> AsyncIterator["Link"]:
        """A link of a frontend of that name."""
        call = self.call()
        await call.write(hello(name=name))
        welcome = pb.AttachResponse.FromString(await call.read()).welcome
        yield Link(call, welcome.fingerprint)
        call.cancel()

    def call(self) -> Any:
        attach: Any = self.channel.stream_stream(f"/{WORKER_SERVICES[0]}/Attach")
        return attach()


@dataclass(frozen=True, slots=True)
class Link:
    """A link that is open."""

    call: Any
    fingerprint: str

    async def end_of(self, message: Message) -> pb.JobEnd:
        """How the only job of a message ended."""
        await self.call.write(message(self.fingerprint))
        while True:
            raw = await self.call.read()
            assert raw is not grpc.aio.EOF
            for answer in pb.AttachResponse.FromString(raw).answers:
                if answer.HasField("end"):
                    return answer.end


@pytest.fixture(scope="module")
async def deceived(nursery: object) -> AsyncIterator[Deceived]:
    """Dense, sparse and token vectors of tiny weights."""
    worker = ServiceProcess("gpu_worker", WORKER_SERVICES, {"model": random_model("tiny-bge-m3"), "threads": 1})
    await worker.start()
    await worker.wait_ready()
    forget_peak(worker)
    idle = memory(worker, "VmRSS")
    options = [*channel_options(), ("grpc.max_send_message_length", MESSAGE_BYTES)]
    async with grpc.aio.insecure_channel(worker.address, options=options) as channel:
        yield Deceived(worker, channel, idle)
    await worker.stop()


async def is_right(deceived: Deceived) -> bool:
    """Whether a frontend that does not lie is answered."""
    async with deceived.attached("honest") as link:
        end = await link.end_of(one())
    return not end.HasField("error") and end.dense_dimensions == 64


@pytest.mark.parametrize("name", FIRST)
async def test_a_frontend_that_does_not_say_who_it_is_is_not_attached(deceived: Deceived, name: str) -> None:
    """It is told what is wrong, and from where it came."""
    message, told = FIRST[name]
    for _ in range(2):
        call = deceived.call()
        await call.write(message)
        await expelled(call, "the frontend at", told)
    assert await is_right(deceived)


@pytest.mark.parametrize("name", ENDING)
async def test_a_message_that_makes_no_sense_ends_the_link(deceived: Deceived, name: str) -> None:
    """By the frontend's name, with one line in the log however often it comes back; others go on."""
    message, told = ENDING[name]
    for _ in range(3):
        async with deceived.attached(name) as link:
            await link.call.write(message(link.fingerprint))
            await expelled(link.call, f"the frontend {name!r} at ", told)
    assert await is_right(deceived)
    assert len(deceived.warnings(name)) == 1
    attached = [event for event in deceived.worker.events if f"frontend {name!r}" in str(event.get("name"))]
    told = ["frontend attached", "a frontend's message makes no sense", "frontend detached"]
    assert [event["event"] for event in attached] == told


async def read_to_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def expelled(call: Any, name: str, told: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_to_end(call)
    details = raised.value.details() or ""
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, details
    assert name in details
    assert told in details


@pytest.mark.parametrize("name", WRONG)
async def test_a_job_that_makes_no_sense_fails_alone(deceived: Deceived, name: str) -> None:
    """By the frontend's name, with one line in the log however often it comes; the next job of the link is answered.

    Numbers that overflow may be a caller's own: the error names the field alone."""
    message, told = WRONG[name]
    async with deceived.attached(name) as link:
        for _ in range(3):
            error = (await link.end_of(message)).error
            assert error.reason in REASONS, error
            assert told in error.message
            assert (f"sent by the frontend {name!r} at " in error.message) is (name not in OF_CALLERS)
            assert len(error.message) < 1100
        assert not (await link.end_of(one())).HasField("error")
    assert len(deceived.warnings(name)) == (name not in OF_CALLERS)


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_is_odd_is_answered(deceived: Deceived, name: str) -> None:
    async with deceived.attached(name) as link:
        end = await link.end_of(HARMLESS[name])
    assert not end.HasField("error"), end
    assert deceived.warnings(name) == []


async def test_a_job_that_comes_twice_is_computed_once(deceived: Deceived) -> None:
    """The second one is refused, since answers could not be told apart."""
    async with deceived.attached("twice") as link:
        twice = pb.AttachRequest.FromString(one([3, 3])(link.fingerprint))
        first = twice.jobs[0]
        first.sequences = 1
        twice.jobs.append(first)
        await link.call.write(twice.SerializeToString())
        ends: list[pb.JobEnd] = []
        while len(ends) < 2:
            message = pb.AttachResponse.FromString(await link.call.read())
            ends += [answer.end for answer in message.answers if answer.HasField("end")]
    assert sorted(end.error.reason for end in ends) == ["", "INVALID_INPUT"]


async def test_all_lies_together_cost_little_memory_and_no_traceback(deceived: Deceived) -> None:
    """At their worst moment; and the worker is not held up by any."""
    assert await is_right(deceived)
    assert memory(deceived.worker, "VmHWM") - deceived.idle < GROWTH
    assert not any("Traceback" in line or '"exception"' in line for line in deceived.worker.log)
