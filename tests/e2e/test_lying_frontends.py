"""Frontends that lie to one worker process, in bytes of the link: it refuses each, and says so once."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from harness.member import ServiceProcess
from selvage.v1 import ranking_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import InvalidInput, error_classes
from shared.server.options import LINK_VERSION, WORKER_SERVICES, channel_options
from shared.value_codec import MESSAGE_BYTES, varint
from support.random_models import random_model
from support.scraping import forget_peak, memory

GROWTH = 300 * 1024 * 1024
"""Most bytes of memory that all lies together may cost the worker at any moment."""
REASONS = {reason for reason, error in error_classes().items() if issubclass(error, InvalidInput)}

Message = Callable[[str], bytes]
"""Makes a message for the model with this fingerprint."""
DENSE = pb.EncodeOptions(outputs=[vectors_pb2.OUTPUT_KIND_DENSE], data_type=vectors_pb2.DATA_TYPE_FLOAT32)
TOKENS = [5, 6, 7]


def hello(**changes: Any) -> bytes:
    return pb.AttachRequest(hello=pb.Hello(**{"version": LINK_VERSION, "name": "a liar"} | changes)).SerializeToString()


def request(
    fingerprint: str, *jobs: pb.Job, lengths: Sequence[int] = (3,), ids: bytes | None = None, **fields: Any
) -> pb.AttachRequest:
    """Jobs over sequences of these lengths."""
    ids = np.resize(np.array(TOKENS, dtype="<i4"), max(0, sum(lengths))).tobytes() if ids is None else ids
    return pb.AttachRequest(fingerprint=fingerprint, token_ids=ids, lengths=lengths, jobs=jobs, **fields)


def job(**fields: Any) -> pb.Job:
    """One of a single sequence, to be embedded; `fields` of `encode` in a dictionary."""
    if isinstance(fields.get("encode"), dict):
        encode = pb.EncodeOptions()
        encode.CopyFrom(DENSE)
        for name, value in fields["encode"].items():
            if isinstance(value, list):
                getattr(encode, name)[:] = value
            else:
                setattr(encode, name, value)
        fields["encode"] = encode
    kinds = {"encode", "score", "classify", "max_sim"}
    return pb.Job(**({} if kinds & {*fields} else {"encode": DENSE}) | {"id": 7, "sequences": 1} | fields)


def table(*jobs: pb.Job, **fields: Any) -> Message:
    """A message whose table of jobs makes no sense."""
    return lambda fingerprint: request(fingerprint, *(jobs or (job(),)), **fields).SerializeToString()


def one(lengths: Sequence[int] = (3,), ids: bytes | None = None, **fields: Any) -> Message:
    """A message with one job."""
    made = job(**{"sequences": len(lengths)} | fields)
    return lambda fingerprint: request(fingerprint, made, lengths=lengths, ids=ids).SerializeToString()


def score(queries: int, *lengths: int, **fields: Any) -> Message:
    values = {"method": vectors_pb2.SCORING_METHOD_DENSE, "layout": vectors_pb2.LAYOUT_MATRIX} | fields
    return one(lengths, score=pb.ScoreOptions(queries=queries, **values))


def side(
    count: int, rows: int = 0, dimensions: int = 8, kind: Any = vectors_pb2.DATA_TYPE_BINARY, **fields: Any
) -> Any:
    """Vectors of so many texts with so many rows each, a bit a number."""
    size = {vectors_pb2.DATA_TYPE_BINARY: 1, vectors_pb2.DATA_TYPE_FLOAT32: 32}.get(kind, 8) * -(-dimensions // 8)
    data = {"lengths": [rows] * count, "data": bytes(count * rows * size)} | fields
    return vectors_pb2.MultiVectors(data_type=kind, dimensions=dimensions, **data)


def max_sim(queries: Any, documents: Any, layout: Any = vectors_pb2.LAYOUT_MATRIX, **fields: Any) -> Message:
    options = pb.MaxSimOptions(queries=queries, documents=documents, layout=layout, **fields)
    return one((), max_sim=options)


def floats(*numbers: float) -> Any:
    return side(1, 1, kind=vectors_pb2.DATA_TYPE_FLOAT32, data=np.resize(np.array(numbers, dtype="<f4"), 8).tobytes())


def raw(field: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def with_raw(extra: bytes) -> Message:
    return lambda fingerprint: request(fingerprint, job()).SerializeToString() + extra


def job_with_raw(extra: bytes) -> Message:
    """A job with bytes of its message that protobuf would not write."""
    return lambda fingerprint: request(fingerprint).SerializeToString() + raw(5, job().SerializeToString() + extra)


MANY = b"\x01" * 20 * 2**20
FIRST: dict[str, tuple[bytes, str]] = {
    "no hello": (request("", job()).SerializeToString(), "first message must be a hello"),
    "a later version": (
        hello(version=LINK_VERSION + 1),
        f"speaks version {LINK_VERSION + 1} of the link, this worker version {LINK_VERSION}",
    ),
    "what is no message": (b"\xff" * 100, "not a message of this method"),
}
"""First messages that end the link, with what is told."""
ENDING: dict[str, tuple[Message, str]] = {
    "what is no message": (lambda _: b"\xff" * 100, "not a message of this method"),
    "a name that is no text": (job_with_raw(raw(8, b"\xff\xfe")), "not a message of this method"),
    "five thousand jobs": (table(*[job()] * 5000, lengths=[1] * 5000), "the limit is 4096"),
    "two million sequences": (table(job(sequences=2**21), lengths=[1] * 2**21), "the limit is 1048576"),
    "twenty million lengths": (with_raw(raw(4, MANY)), "beside token ids and vectors"),
    "twenty million texts of a MaxSim": (job_with_raw(raw(12, raw(1, raw(3, MANY)))), "beside token ids and vectors"),
}
"""Messages that end the link."""
WRONG: dict[str, tuple[Message, str]] = {
    "nothing to do": (lambda f: request(f, pb.Job(id=7, sequences=1)).SerializeToString(), "nothing to do"),
    "an unknown output": (one(encode={"outputs": [99]}), "99 is not a valid OutputKind"),
    "an unknown data type": (one(encode={"data_type": 77}), "77 is not a valid DataType"),
    "less than no dimensions": (one(encode={"dimensions": -4}), "dimensions must be"),
    "endless dimensions of no rows": (
        max_sim(side(1, 0, 2**31 - 1), side(1, 0, 2**31 - 1)),
        "queries has rows of 2147483647 dimensions, the limit is 16384",
    ),
    "a token of no vocabulary": (one(ids=np.array([5, 10**6, 5], dtype="<i4").tobytes()), "a token id is outside"),
    "a negative token": (one(ids=np.array([5, -1, 5], dtype="<i4").tobytes()), "a token id is outside"),
    "a text without end": (one([10**6]), "a sequence has 1000000 tokens"),
    "no sequence": (one([]), "no sequences"),
    "a prompt longer than its text": (one(prompt_lengths=[9]), "prompt_lengths has an entry outside"),
    "queries alone": (score(2, 2, 2), "needs a query and a document"),
    "weights that are NaN": (
        score(1, 2, 2, weights=ranking_pb2.HybridWeights(dense=math.nan), method=vectors_pb2.SCORING_METHOD_HYBRID),
        "each weight must be a number",
    ),
    "25 million scores of texts": (score(5000, *[1] * 10_000), "the scores of a job would have 100000000 bytes"),
    "80 million bytes of vectors": (one([1] * 312_500), "the vectors of a job would have 80000000 bytes"),
    "60,000 x 60,000 empty vectors": (max_sim(side(60_000), side(60_000)), "would have 14400000000 bytes"),
    "two billion and a half products": (max_sim(side(1, 50_000), side(1, 50_000)), "2500000000 products"),
    "a hundred million winners": (max_sim(side(1, 10_000), side(10_000), explain=True), "the winners of a job"),
    "fewer bytes than rows": (max_sim(side(1, 5, data=b"1"), side(1, 1)), "holds 1 bytes"),
    "less than no rows": (max_sim(side(1, 1, lengths=[-1]), side(1, 1)), "a length is negative"),
    "NaN in a vector": (max_sim(floats(math.nan), floats(1.0)), "overflow float32"),
    "labels of a model without any": (one(classify=pb.ClassifyOptions()), "classifies no texts"),
    "a key of a million letters": (one(key="k" * 10**6), "key has 1000000 letters"),
}
"""Jobs that fail; the link goes on."""
HARMLESS: dict[str, Message] = {
    "ids that nobody has": lambda f: request(f, job(), cancels=[1, 2**64 - 1]).SerializeToString(),
    "a field of a later version": with_raw(raw(900, b"what may come")),
    "an endless deadline": lambda f: request(f, far()).SerializeToString(),
}
"""What is odd, and answered."""


def far() -> pb.Job:
    made = job()
    made.remaining.seconds = 2**62
    return made


OF_CALLERS = ("NaN in a vector",)
"""Those of `WRONG` that only the computed result shows."""


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
