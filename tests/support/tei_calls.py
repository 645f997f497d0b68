"""How tests call tei.v1."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
import pytest

from support.references import LONGEST_WAIT, near, refusal
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc

TEXTS = [f"w{number % 90} w{number * 7 % 90} " * (1 + number % 9) for number in range(300)]
LONG = "w1 " * 1000
PRECISE = 1e-6
LEFT = pb.TRUNCATION_DIRECTION_LEFT


class Tei:
    """The stubs of tei.v1 on one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.info: Any = tei_pb2_grpc.InfoStub(channel)
        self.embed: Any = tei_pb2_grpc.EmbedStub(channel)
        self.predict: Any = tei_pb2_grpc.PredictStub(channel)
        self.rerank: Any = tei_pb2_grpc.RerankStub(channel)
        self.tokenize: Any = tei_pb2_grpc.TokenizeStub(channel)


async def told(awaited: Any) -> tuple[str, str, str]:
    """Status, reason and field of an error."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaited
    return refusal(raised.value)


def until_refused(address: str, requests: Iterable[pb.EmbedRequest]) -> tuple[list[pb.EmbedResponse], Any]:
    """The answers of an EmbedStream, and the error that ended it. Blocks.

    Not over grpc.aio, whose client gives a call the status INTERNAL, instead of the service's own, where it writes
    while the call ends.
    """
    replies = list[pb.EmbedResponse]()
    with grpc.insecure_channel(address) as channel:
        answers = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter(requests), timeout=LONGEST_WAIT)
        with pytest.raises(grpc.RpcError) as raised:
            replies.extend(answers)
    return replies, raised.value


async def all_of(stream: Any) -> list[Any]:
    return [reply async for reply in stream]


async def same_as_single(
    single: Callable[[Any], Any], stream: Callable[[Any], Any], requests: Sequence[Any], shape: Callable[[Any], Any]
) -> None:
    """A stream answers every message, in order, as a call of its own would."""
    replies = await all_of(stream(iter(requests)))
    assert len(replies) == len(requests)
    for place in range(0, len(requests), 29):
        near(shape(replies[place]), shape(await single(requests[place])), PRECISE)


def scores(reply: Any) -> list[float]:
    return [each.score for each in reply.predictions]


def embeds(*texts: str) -> Iterable[pb.EmbedRequest]:
    return (pb.EmbedRequest(inputs=text) for text in texts)
