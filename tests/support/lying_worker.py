"""A worker over real gRPC that computes nothing: it is honest but for one lie."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc

from harness.random_models import synthetic
from selvage.worker.v1 import worker_pb2 as pb
from shared import value_codec as codec
from shared.card import ModelCard
from shared.jobs import Job
from shared.link_codec import load_to_pb
from shared.load import Load
from shared.server.options import LINK_VERSION, WORKER_SERVICES, server_options
from shared.vectors import OutputKind, ScoringMethod, Task
from support.worker_lies import LABELS, WIDTH, Lie, honest, job_of, message

VOCABULARY = 1000
TOKENIZER = synthetic.tokenizer(VOCABULARY).content


def honest_card(name: str) -> ModelCard:
    return ModelCard(
        id=name,
        family="bert",
        outputs=tuple(OutputKind),
        methods=(ScoringMethod.DENSE, ScoringMethod.LATE_INTERACTION),
        default_method=ScoringMethod.DENSE,
        pooling="mean",
        dimensions=WIDTH,
        multi_vector_dimensions=WIDTH,
        normalizes=True,
        max_tokens=100,
        vocabulary_size=VOCABULARY,
        dtype="float32",
        device="cpu",
        attention="",
        linear="",
        fingerprint=f"that of {name}",
        tasks=tuple(Task),
        sparse_head="lexical",
        labels=tuple(f"label {number}" for number in range(LABELS)),
    )


class LyingWorker:
    """Answers raw bytes, since not all that it sends is a message. `attached`: how often a frontend has attached.

    `load`: what it tells of its load, before a lie about it.
    """

    def __init__(self, name: str, lie: Lie | None = None, outputs: Sequence[int] = ()) -> None:
        """`outputs`: what the card says of them instead of the truth."""
        self.name, self._lie, self.attached = name, lie, 0
        self.load = Load()
        self.description = pb.DescribeResponse(card=codec.card_to_pb(honest_card(name)), queued_tokens=10**6)
        if outputs:
            self.description.card.outputs[:] = outputs  # type: ignore[assignment]  # some are none of the contract
        self.address = ""  # once it has started

    async def start(self) -> None:
        """Makes the server, which belongs to the running event loop."""
        self._server = grpc.aio.server(options=server_options(connection_age=False))
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "GetTokenizer": grpc.unary_stream_rpc_method_handler(self._get_tokenizer),
            "Attach": grpc.stream_stream_rpc_method_handler(self._attach),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(WORKER_SERVICES[0], methods),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _describe(self, request: bytes, context: Any) -> bytes:
        return self.description.SerializeToString()

    async def _get_tokenizer(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for piece in self.tokenizer():
            yield piece.SerializeToString()

    def tokenizer(self) -> Iterator[pb.GetTokenizerResponse]:
        """The pieces of a small one."""
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=TOKENIZER)

    def welcome(self) -> bytes:
        """The first message of the link."""
        card = self.description.card
        welcome = pb.Welcome(version=LINK_VERSION, instance="the only one", fingerprint=card.fingerprint)
        return pb.AttachResponse(welcome=welcome, load=load_to_pb(self.load)).SerializeToString()

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await anext(requests)
        self.attached += 1
        writing = asyncio.Lock()
        await context.write(self.welcome())
        beating = asyncio.create_task(self._beat(context, writing))
        try:
            async for raw in requests:
                request = pb.AttachRequest.FromString(raw)
                for index in range(len(request.jobs)):
                    for reply in self._replies(job_of(request, index)):
                        async with writing:
                            await context.write(reply)
        finally:
            beating.cancel()

    def _replies(self, job: Job) -> Iterator[bytes]:
        if self._lie is None:
            yield message(job, honest(job))
        elif self._lie.messages is not None:
            yield from self._lie.messages(job)
        else:
            assert self._lie.result is not None
            yield message(job, self._lie.result(job, honest(job)))

    async def _beat(self, context: Any, writing: asyncio.Lock) -> None:
        while True:
            await asyncio.sleep(1)
            async with writing:
                await context.write(pb.AttachResponse(load=load_to_pb(self.load)).SerializeToString())


class BrokenTokenizer(LyingWorker):
    """Its tokenizer is none."""

    def tokenizer(self) -> Iterator[pb.GetTokenizerResponse]:
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=b"[" * 10**6)


class WrongWelcome(LyingWorker):
    """Its link is one for another model."""

    def welcome(self) -> bytes:
        welcome = pb.Welcome(version=LINK_VERSION, fingerprint="that of another model")
        return pb.AttachResponse(welcome=welcome).SerializeToString()


class NoWelcome(LyingWorker):
    """Its link begins with what is no message."""

    def welcome(self) -> bytes:
        return b"\xff" * 100


class LaterVersion(LyingWorker):
    """It speaks a later version of the link."""

    def welcome(self) -> bytes:
        return pb.AttachResponse(welcome=pb.Welcome(version=LINK_VERSION + 1)).SerializeToString()


def never_serving() -> list[tuple[LyingWorker, str]]:
    """Workers that no frontend may serve, and what it says of each."""
    return [
        (BrokenTokenizer("broken tokenizer"), "its tokenizer cannot be read"),
        (WrongWelcome("wrong welcome"), "another model's fingerprint"),
        (NoWelcome("no welcome"), "no message of the link"),
        (LaterVersion("later version"), "it speaks version 4 of the link, this frontend version 3"),
        (LyingWorker("unknown output", outputs=[99]), "its card is not understood"),
    ]
