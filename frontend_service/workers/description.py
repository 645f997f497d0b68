"""What a worker tells of itself. Knows nothing of health and jobs."""

from dataclasses import dataclass
from math import inf
from typing import Any

import grpc

from frontend_service.workers.transport import Metadata
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard
from shared.codec import fields as codec

TIMEOUT = 10.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """The model, how many tokens may wait for it, and how many seconds a job."""

    card: ModelCard
    queued_tokens: int
    queue_seconds: float


async def describe(channel: grpc.aio.Channel, metadata: Metadata) -> WorkerDescription:
    """Raises grpc's AioRpcError, and ValueError where the card holds what this version does not know."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    message = await stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT, metadata=metadata)
    return WorkerDescription(
        card=codec.card_from_pb(message.card),
        queued_tokens=message.queued_tokens,
        queue_seconds=message.queue_seconds or inf,
    )
