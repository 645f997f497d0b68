"""The services of tei.v1 over gRPC: messages -> exchange -> messages. `Interceptor` answers errors."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from frontend_service.api.grpc_stream import begin_replies
from frontend_service.api.tei_v1.codec import embedding, info, prediction, ranking, tokenization
from frontend_service.api.tei_v1.codec.fields import metadata_headers
from frontend_service.api.tei_v1.gathering import RerankGathering
from frontend_service.api.tei_v1.grouped import (
    OBJECT_WEIGHT,
    GroupedStream,
    GroupMethod,
    WrittenReplies,
    byte_size,
    timed_exchange,
)
from frontend_service.application.frontend import Frontend
from shared.caller import Caller
from shared.server.interceptor import CALLER
from shared.terms import Deadline
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc as services

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)
SPARSE_WEIGHT = 4
"""Times that an index and its weight take longer into a message than to be copied: numpy writes, protobuf reads."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all services of the contract to a server, those of `TEI_SERVICES`."""
    services.add_InfoServicer_to_server(InfoServicer(frontend), server)
    services.add_EmbedServicer_to_server(EmbedServicer(frontend), server)
    services.add_PredictServicer_to_server(PredictServicer(frontend), server)
    services.add_RerankServicer_to_server(RerankServicer(frontend), server)
    services.add_TokenizeServicer_to_server(TokenizeServicer(frontend), server)


class _GroupServicer:
    """Answers unary calls and streams of a GroupMethod."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def _answer_unary(self, method: GroupMethod[M, R], message: M, context: Context) -> R:
        """Answers a message, with the times in the headers before the reply."""
        device = self._frontend.models.get("").card.device
        (reply,) = (await method.answer([message], CALLER.get())).replies
        await context.send_initial_metadata(metadata_headers(reply.metadata, device))  # type: ignore[attr-defined]
        return reply

    async def _answer_stream(self, method: GroupMethod[M, R], messages: Any, context: Context) -> None:
        """Answers all messages of a stream, which are a `Requests` of the interceptor."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            await GroupedStream(self._frontend, method, caller, stream, await begin_replies(context)).run(messages)


class InfoServicer(services.InfoServicer):
    """The service tei.v1.Info."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        frontend = self._frontend
        return info.info_response_to_pb(
            frontend.models.get(""), frontend.calls.admission.bounds.requests, frontend.thread_count
        )


class EmbedServicer(_GroupServicer, services.EmbedServicer):
    """The service tei.v1.Embed."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service, codec = frontend.embedding.embed, embedding
        self._dense = GroupMethod(
            timed_exchange(frontend, codec.embed_request_from_pb, call_service, codec.embed_responses_to_pb)
        )
        self._sparse = GroupMethod(
            timed_exchange(
                frontend,
                codec.embed_sparse_request_from_pb,
                call_service,
                codec.embed_sparse_responses_to_pb,
                SPARSE_WEIGHT,
            )
        )
        self._all = GroupMethod(
            timed_exchange(frontend, codec.embed_all_request_from_pb, call_service, codec.embed_all_responses_to_pb)
        )

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


class PredictServicer(_GroupServicer, services.PredictServicer):
    """The service tei.v1.Predict."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service, codec = frontend.classification.texts, prediction
        self._single = GroupMethod(
            timed_exchange(
                frontend, codec.predict_request_from_pb, call_service, codec.predict_responses_to_pb, OBJECT_WEIGHT
            )
        )
        self._pair = GroupMethod(
            timed_exchange(
                frontend, codec.predict_pair_request_from_pb, call_service, codec.predict_responses_to_pb, OBJECT_WEIGHT
            ),
            codec.pair_options,
        )

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._single, request, context)

    async def PredictPair(self, request: pb.PredictPairRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._pair, request, context)

    async def PredictStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._single, request_iterator, context)

    async def PredictPairStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._pair, request_iterator, context)


class RerankServicer(_GroupServicer, services.RerankServicer):
    """The service tei.v1.Rerank."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service = frontend.ranking.rerank
        self._rerank = GroupMethod(
            timed_exchange(frontend, ranking.rerank_request_from_pb, call_service, ranking.rerank_responses_to_pb)
        )

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


class TokenizeServicer(_GroupServicer, services.TokenizeServicer):
    """The service tei.v1.Tokenize. Its replies have no times."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        self._encode, self._decode = GroupMethod(self._encode_texts), GroupMethod(self._decode_ids)

    async def _encode_texts(self, messages: Sequence[pb.EncodeRequest], _: Caller) -> WrittenReplies[pb.EncodeResponse]:
        offload = self._frontend.offload
        request = await offload(byte_size(self._frontend, messages), tokenization.encode_request_from_pb, messages)
        shown = await self._frontend.models.tokenize(request)
        self._frontend.calls.admission.reserve(shown.size)
        replies = await offload(
            OBJECT_WEIGHT * shown.size, partial(tokenization.encode_responses_to_pb, messages), shown
        )
        return WrittenReplies(replies, shown.size)

    async def _decode_ids(self, messages: Sequence[pb.DecodeRequest], _: Caller) -> WrittenReplies[pb.DecodeResponse]:
        size = byte_size(self._frontend, messages)
        request = await self._frontend.offload(size, tokenization.decode_request_from_pb, messages)
        return WrittenReplies(
            tokenization.decode_responses_to_pb(await self._frontend.models.detokenize(request)), size
        )

    async def Tokenize(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        (reply,) = (await self._encode_texts([request], CALLER.get())).replies
        return reply

    async def TokenizeStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._encode, request_iterator, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        (reply,) = (await self._decode_ids([request], CALLER.get())).replies
        return reply

    async def DecodeStream(self, request_iterator: Any, context: Context) -> None:
        await self._answer_stream(self._decode, request_iterator, context)
