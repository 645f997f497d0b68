"""The worker's tokenizer.json, and the Tokenization that it makes for a card. Knows nothing of health and jobs."""

import asyncio
from concurrent.futures import Executor
from typing import Any

import grpc

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard

TIMEOUT = 10.0
"""Seconds for all pieces."""
NAME = "tokenizer.json"


async def tokenization_of(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, threads: Executor
) -> ModelTokenizer:
    """Fetches it in pieces, reads it in a thread. Raises grpc's AioRpcError, and Exception where it is none."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    pieces = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata)
    content = b"".join([piece.data async for piece in pieces if piece.name == NAME])
    return await asyncio.get_running_loop().run_in_executor(threads, ModelTokenizer, content, card)
