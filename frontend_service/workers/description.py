"""What a worker says of itself: its model's card, its limits, and its tokenizer. Knows nothing of health and jobs."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import grpc

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.claims import TOKENIZER_BYTES, TOKENIZER_PIECES, check_adapters, check_card, check_limits
from frontend_service.workers.reply_check import WrongReply
from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard
from shared.codec import fields as codec
from shared.errors import shorten

TIMEOUT = 10.0
"""Seconds for a description, and for all pieces of a tokenizer."""
TOKENIZER_FILE = "tokenizer.json"


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
    except ValueError as error:  # of a later version
        raise WrongReply("its card is not understood", shorten(str(error))) from None
    check_limits(message.queued_tokens, message.queue_seconds)
    return WorkerDescription(
        card=check_card(card),
        adapters=check_adapters(card, adapters),
        queued_tokens=message.queued_tokens,
        queue_seconds=message.queue_seconds or inf,
    )


async def fetch_tokenizer(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, message_threads: Executor
) -> ModelTokenizer:
    """Fetches a worker's tokenizer in pieces, and loads it in a thread.

    Raises grpc's AioRpcError, and WrongReply where the pieces are too many or no tokenizer.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    content, pieces = bytearray(), 0
    async for piece in stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata):
        pieces += 1
        if piece.name == TOKENIZER_FILE:
            content += piece.data
        if len(content) > TOKENIZER_BYTES or pieces > TOKENIZER_PIECES:
            raise WrongReply("its tokenizer has no end", f"{len(content)} bytes in {pieces} pieces")
    load = partial(ModelTokenizer, bytes(content), card)
    del content
    try:
        return await asyncio.get_running_loop().run_in_executor(message_threads, load)
    except ValueError as error:
        raise WrongReply("its tokenizer cannot be read", shorten(str(error))) from None
