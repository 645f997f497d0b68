"""The services of tei.v1 over gRPC: message -> exchange -> message. `Interceptor` answers errors."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from frontend_service.api.streams import begin_replies
from frontend_service.api.tei_v1 import messages as codec
from frontend_service.api.tei_v1.message_streams import Answer, MessageStream, RerankGathering
from frontend_service.application.frontend import Exchange, Frontend
from shared.caller import Caller
from shared.server.interceptor import CALLER
from shared.terms import Deadline
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc as services

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)
OBJECT_WEIGHT = 16
"""Times that a byte of scores takes longer into messages, an object each, than to be copied."""
SPARSE_WEIGHT = 4
"""Times that an index and its weight take longer into a message than to be copied: numpy writes, protobuf reads."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all services of the contract to a server, those of `TEI_SERVICES`."""
    services.add_InfoServicer_to_server(InfoServicer(frontend), server)
    services.add_EmbedServicer_to_server(EmbedServicer(frontend), server)
    services.add_PredictServicer_to_server(PredictServicer(frontend), server)
    services.add_RerankServicer_to_server(RerankServicer(frontend), server)
    services.add_TokenizeServicer_to_server(TokenizeServicer(frontend), server)


class _MessageServicer:
    """Answers unary calls and streams of messages."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    def _timed(
        self,
        read: Callable[[M], Any],
        call_service: Callable[[Any, Any], Awaitable[Any]],
        write: Callable[[Any, Any], R],
        weight: int = 1,
    ) -> Callable[[M, int, Caller], Awaitable[R]]:
        """Returns a function that answers a message of so many bytes by an exchange, with times in the reply.

        `weight`: see `Exchange`.
        """
        exchange = Exchange(read=read, call_service=call_service, write=write, weight=weight)

        async def answer(message: M, size: int, caller: Caller) -> R:
            start = time.monotonic()
            reply, timing = await self._frontend.exchange(exchange, message, size, caller)
            codec.put_times(reply.metadata, timing, time.monotonic() - start)  # type: ignore[attr-defined]
            return reply

        return answer

    async def _answer_unary(self, answer: Callable[[M, int, Caller], Awaitable[R]], message: M, context: Context) -> R:
        """Answers a message, with the times in the headers before the reply."""
        device = self._frontend.models.get("").card.device
        reply = await answer(message, self._frontend.calls.admission.message_size, CALLER.get())
        await context.send_initial_metadata(codec.metadata_headers(reply.metadata, device))  # type: ignore[attr-defined]
        return reply

    async def _answer_stream(self, answer: Answer[M], messages: Any, context: Context) -> None:
        """Answers all messages of a stream, which are a `Requests` of the interceptor."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            await MessageStream(self._frontend, answer, caller, stream, await begin_replies(context)).run(messages)


class InfoServicer(services.InfoServicer):
    """The service tei.v1.Info."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        frontend = self._frontend
        return codec.info_response_to_pb(
            frontend.models.get(""), frontend.calls.admission.bounds.requests, frontend.thread_count
        )


class EmbedServicer(_MessageServicer, services.EmbedServicer):
    """The service tei.v1.Embed."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        embed = frontend.embedding.embed
        self._dense = self._timed(codec.embed_request_from_pb, embed, codec.embed_response_to_pb)
        self._sparse = self._timed(
            codec.embed_sparse_request_from_pb, embed, codec.embed_sparse_response_to_pb, SPARSE_WEIGHT
        )
        self._all = self._timed(codec.embed_all_request_from_pb, embed, codec.embed_all_response_to_pb)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._answer_unary(self._dense, request, context)

    async def EmbedStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._dense, request_iterator, context)

    async def EmbedSparse(self, request: pb.EmbedSparseRequest, context: Context) -> pb.EmbedSparseResponse:
        return await self._answer_unary(self._sparse, request, context)

    async def EmbedSparseStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._sparse, request_iterator, context)

    async def EmbedAll(self, request: pb.EmbedAllRequest, context: Context) -> pb.EmbedAllResponse:
        return await self._answer_unary(self._all, request, context)

    async def EmbedAllStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._all, request_iterator, context)


class PredictServicer(_MessageServicer, services.PredictServicer):
    """The service tei.v1.Predict."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        classify, write = frontend.classification.texts, codec.predict_response_to_pb
        self._single = self._timed(codec.predict_request_from_pb, classify, write, OBJECT_WEIGHT)
        self._pair = self._timed(codec.predict_pair_request_from_pb, classify, write, OBJECT_WEIGHT)

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._single, request, context)

    async def PredictPair(self, request: pb.PredictPairRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._pair, request, context)

    async def PredictStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._single, request_iterator, context)

    async def PredictPairStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._pair, request_iterator, context)


class RerankServicer(_MessageServicer, services.RerankServicer):
    """The service tei.v1.Rerank."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        self._rerank = self._timed(codec.rerank_request_from_pb, frontend.ranking.rerank, codec.rerank_response_to_pb)

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        return await self._answer_unary(self._rerank, request, context)

    async def RerankStream(self, request_iterator: Any, context: Context) -> pb.RerankResponse:
        calls, caller, models = self._frontend.calls, CALLER.get(), self._frontend.models
        deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        with calls.stream(caller) as stream, calls.admission.holding() as held:
            gathering = RerankGathering(calls.admission, stream, models.get("").limits, held)
            request = await gathering.gather(request_iterator)
            if deadline is not None:
                caller = replace(caller, remaining=deadline.remaining())
                CALLER.set(caller)

            async def work() -> pb.RerankResponse:
                calls.admission.note_message(held.held)
                return await self._answer_unary(self._rerank, request, context)

            return await calls.answer(caller, work)


class TokenizeServicer(_MessageServicer, services.TokenizeServicer):
    """The service tei.v1.Tokenize. Its replies have no times."""

    async def _encode(self, message: pb.EncodeRequest, size: int, _: Caller) -> pb.EncodeResponse:
        offload = self._frontend.offload
        shown = await self._frontend.models.tokenize(await offload(size, codec.encode_request_from_pb, message))
        self._frontend.calls.admission.reserve(shown.size)
        return await offload(OBJECT_WEIGHT * shown.size, partial(codec.encode_response_to_pb, message), shown)

    async def _decode(self, message: pb.DecodeRequest, size: int, _: Caller) -> pb.DecodeResponse:
        request = await self._frontend.offload(size, codec.decode_request_from_pb, message)
        return codec.decode_response_to_pb(await self._frontend.models.detokenize(request))

    async def Tokenize(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        return await self._encode(request, self._frontend.calls.admission.message_size, CALLER.get())

    async def TokenizeStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._encode, request_iterator, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        return await self._decode(request, self._frontend.calls.admission.message_size, CALLER.get())

    async def DecodeStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._decode, request_iterator, context)
