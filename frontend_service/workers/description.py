"""What a worker says of itself: its model's card, its limits, and its tokenizer. Knows nothing of health and jobs."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from math import inf
from typing import Any

import grpc

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard
from shared.codec import fields as codec

TIMEOUT = 10.0
"""Seconds for a description, and for all pieces of a tokenizer."""
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """The model, and when the worker refuses a job: see `ServedModel`."""

    card: ModelCard
    queued_tokens: int
    queue_seconds: float


async def describe(channel: grpc.aio.Channel, metadata: Metadata) -> WorkerDescription:
    """Asks a worker for its description. Raises grpc's AioRpcError, and ValueError for a card of another version."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    message = await stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT, metadata=metadata)
    return WorkerDescription(
        card=codec.card_from_pb(message.card),
        queued_tokens=message.queued_tokens,
        queue_seconds=message.queue_seconds or inf,
    )


async def fetch_tokenizer(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, message_threads: Executor
) -> ModelTokenizer:
    """Fetches a worker's tokenizer in pieces, and loads it in a thread.

    Raises grpc's AioRpcError, and other exceptions where the pieces are no tokenizer.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    pieces = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata)
    content = b"".join([piece.data async for piece in pieces if piece.name == TOKENIZER_FILE])
    return await asyncio.get_running_loop().run_in_executor(message_threads, ModelTokenizer, content, card)
