"""What a worker says of itself: its model's card, its limits, and what reads texts; which models may be served.

Knows no health and no jobs.
"""

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import grpc

from frontend_service.tokenizing.tokenizer import ModelTexts, read_files
from frontend_service.workers.reply import WrongReply
from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import value_codec as codec
from shared.card import ModelCard
from shared.errors import WorkerUnavailable, shorten

TIMEOUT = 10.0
"""Seconds for a description, and for all pieces of a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """The model, the adapters over it, and when the worker refuses a job: see `ServedModel`."""

    card: ModelCard
    adapters: tuple[ModelCard, ...]
    queued_tokens: int
    queue_seconds: float


async def describe(channel: grpc.aio.Channel, metadata: Metadata) -> WorkerDescription:
    """Asks a worker for its description. Raises grpc's AioRpcError, and WrongReply for one that makes no sense."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    message = await stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT, metadata=metadata)
    try:
        card = codec.card_from_pb(message.card)
        adapters = tuple(map(codec.card_from_pb, message.adapters))
    except ValueError as error:
        raise WrongReply("its card is not understood", shorten(str(error))) from None
    return WorkerDescription(
        card=card,
        adapters=adapters,
        queued_tokens=message.queued_tokens,
        queue_seconds=message.queue_seconds or inf,
    )


async def fetch_texts(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, message_threads: Executor
) -> ModelTexts:
    """Fetches in pieces what a worker's model reads texts with, its tokenizer above all, and loads it in a thread.

    Raises grpc's AioRpcError, and WrongReply where they are no tokenizer.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    files: dict[str, bytearray] = {}
    async for piece in stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata):
        files.setdefault(piece.name, bytearray()).extend(piece.data)
    load = partial(read_files, {name: bytes(content) for name, content in files.items()}, card)
    del files
    try:
        return await asyncio.get_running_loop().run_in_executor(message_threads, load)
    except ValueError as error:
        raise WrongReply("its tokenizer cannot be read", shorten(str(error))) from None


def allowed_cards(cards: Sequence[ModelCard], pins: Collection[str]) -> list[ModelCard]:
    """The cards of the models that may be served, by the fingerprints that a frontend is bound to; none: any model.

    Workers of one name may have other weights. Without pins each frontend chooses by itself which of them the name
    stands for, so two frontends may choose differently. Raises WorkerUnavailable where no model may be served.
    """
    allowed = [card for card in cards if not pins or card.fingerprint in pins]
    if not allowed:
        card, pinned = cards[0], ", ".join(sorted(pins))
        raise WorkerUnavailable(f"its {card.id} has the fingerprint {card.fingerprint}, --fingerprint is {pinned}")
    return allowed
