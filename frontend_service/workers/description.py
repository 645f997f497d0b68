"""What a worker says of itself: its model's card, its limits, and what reads texts. Knows no health and no jobs."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import grpc

from frontend_service.tokenizing.model_texts import ModelTexts, read_files
from frontend_service.workers.claims import (
    TOKENIZER_BYTES,
    TOKENIZER_PIECES,
    check_adapters,
    check_card,
    check_limits,
)
from frontend_service.workers.reply_check import WrongReply
from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard
from shared.codec import fields as codec
from shared.errors import shorten
from shared.query_table import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TABLE_WEIGHTS, TOKENIZER_FILE, WEIGHT_BYTES

TIMEOUT = 10.0
"""Seconds for a description, and for all pieces of a tokenizer."""
MOST_BYTES = {
    TOKENIZER_FILE: TOKENIZER_BYTES,
    QUERY_TOKENIZER_FILE: TOKENIZER_BYTES,
    QUERY_TABLE_FILE: WEIGHT_BYTES * TABLE_WEIGHTS,
}
"""Most bytes of each file; files of other names are of a later version and are left alone."""


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


async def fetch_texts(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, message_threads: Executor
) -> ModelTexts:
    """Fetches in pieces what a worker's model reads texts with, its tokenizer above all, and loads it in a thread.

    Raises grpc's AioRpcError, and WrongReply where the pieces are too many or no tokenizer.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    files, pieces = dict[str, bytearray](), 0
    async for piece in stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata):
        pieces += 1
        most, size = MOST_BYTES.get(piece.name), 0
        if most is not None:
            files.setdefault(piece.name, bytearray()).extend(piece.data)
            size = len(files[piece.name])
        if size > (most or 0) or pieces > TOKENIZER_PIECES:
            raise WrongReply("its tokenizer has no end", f"{size} bytes in {pieces} pieces")
    load = partial(read_files, {name: bytes(content) for name, content in files.items()}, card)
    del files
    try:
        return await asyncio.get_running_loop().run_in_executor(message_threads, load)
    except ValueError as error:
        raise WrongReply("its tokenizer cannot be read", shorten(str(error))) from None
