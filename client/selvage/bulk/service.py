"""A target as the command asks it: its model's card, and one EmbedStream at a time. The one file here with gRPC."""

from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from selvage.calls.rpcs import RPCS
from selvage.connection import Settings
from selvage.errors import from_call, from_ended_stream
from selvage.model_card import ModelCard, card_from_pb
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse
from selvage.v1.model_pb2 import GetModelRequest

CARD_SECONDS = 10.0


class BulkService(Protocol):
    """What a target needs; tests have one of their own."""

    name: str

    def card(self) -> ModelCard:
        """Of its model. Raises SelvageError."""

    def answers(self, requests: Iterator[EmbedStreamRequest]) -> Iterator[EmbedStreamResponse]:
        """Of one stream, which ends after the requests. Raises SelvageError."""

    def close(self) -> None:
        """Ends what is under way, from any thread."""


class ChannelService:
    """Over one connection, or into this process."""

    def __init__(self, settings: Settings, channel: Any) -> None:
        """`channel`: a `grpc.Channel`, or what calls like one."""
        self.name, self._settings, self._channel = settings.target, settings, channel
        self._model = self._method(GetModelRequest, self._channel.unary_unary)
        self._stream = self._method(EmbedStreamRequest, self._channel.stream_stream)

    def card(self) -> ModelCard:
        request_id, metadata = self._settings.headers()
        try:
            reply = self._model(GetModelRequest(model=self._settings.model), timeout=CARD_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            raise from_call(error, request_id) from None
        return card_from_pb(reply.card)

    def answers(self, requests: Iterator[EmbedStreamRequest]) -> Iterator[EmbedStreamResponse]:
        request_id, metadata = self._settings.headers()
        call = self._stream(requests, metadata=metadata)
        try:
            yield from call
        except grpc.RpcError:
            raise from_ended_stream(call, request_id) from None
        finally:  # whoever stops reading leaves no call behind
            call.cancel()

    def close(self) -> None:
        self._channel.close()

    def _method(self, kind: type[Any], shape: Any) -> Any:
        rpc = RPCS[kind]
        return shape(rpc.path, request_serializer=kind.SerializeToString, response_deserializer=rpc.reply)
