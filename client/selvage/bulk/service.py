"""A service as a target's thread uses it: its model's card, and EmbedStream. The one file here that calls gRPC."""

from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from selvage.connection import Settings
from selvage.errors import SelvageError, from_call, from_ended_stream
from selvage.messages.card import card_from_pb
from selvage.model_card import ModelCard
from selvage.transport import RPCS
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse
from selvage.v1.model_pb2 import GetModelRequest

CARD_SECONDS = 10.0
"""Deadline of the request for the model's card."""


class BulkService(Protocol):
    """A service as the bulk command uses it. `name` stands in messages."""

    name: str

    def card(self, seconds: float = CARD_SECONDS) -> ModelCard:
        """The card of the service's model, within so many seconds. Raises SelvageError."""

    def replies(self, requests: Iterator[EmbedStreamRequest]) -> Iterator[EmbedStreamResponse]:
        """The replies of one stream, which ends after the requests. Raises SelvageError."""

    def close(self) -> None:
        """Ends calls in progress; may be called from any thread."""


class ChannelService:
    """A service behind a channel: over the network, or in this process."""

    def __init__(self, settings: Settings, channel: Any) -> None:
        """`channel`: a `grpc.Channel`, or an object with the same methods."""
        self.name, self._settings, self._channel = settings.target, settings, channel
        self._get_model = self._method(GetModelRequest, self._channel.unary_unary)
        self._embed_stream = self._method(EmbedStreamRequest, self._channel.stream_stream)

    def card(self, seconds: float = CARD_SECONDS) -> ModelCard:
        request_id, metadata = self._settings.headers()
        request = GetModelRequest(model=self._settings.model)
        try:
            reply = self._get_model(request, timeout=seconds, metadata=metadata)
        except grpc.RpcError as error:
            raise from_call(error, request_id) from None
        return card_from_pb(reply.card)

    def replies(self, requests: Iterator[EmbedStreamRequest]) -> Iterator[EmbedStreamResponse]:
        request_id, metadata = self._settings.headers()
        call = self._embed_stream(requests, metadata=metadata)
        failure: SelvageError | None = None
        try:
            yield from call
        except grpc.RpcError as error:
            error.__traceback__ = None  # refers to this call, and the call is the error: a cycle
            failure = from_ended_stream(call, request_id)
        finally:  # a caller that stops reading leaves no call behind
            call.cancel()
            del call
        if failure is not None:
            raise failure

    def close(self) -> None:
        self._channel.close()

    def _method(self, kind: type[Any], shape: Any) -> Any:
        """A callable for the rpc of a request's class; `shape`: the channel's method for rpcs of its kind."""
        rpc = RPCS[kind]
        return shape(rpc.path, request_serializer=kind.SerializeToString, response_deserializer=rpc.reply)
