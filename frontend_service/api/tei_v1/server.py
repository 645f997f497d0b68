"""The services of tei.v1: messages -> exchange -> messages. Decides nothing; `Interceptor` tells errors."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from frontend_service.api.grpc_stream import begun
from frontend_service.api.tei_v1.codec import embedding, info, prediction, ranking, tokenization
from frontend_service.api.tei_v1.codec.fields import headers
from frontend_service.api.tei_v1.gathering import Gathering
from frontend_service.api.tei_v1.grouped import OBJECTS, Grouped, Method, WrittenReplies, size_of, timed
from frontend_service.application.frontend import Frontend
from shared.caller import Caller
from shared.deadline import Deadline
from shared.server.rpc.interceptor import CALLER
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc as services

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)
SPARSE = 4
"""How much longer an index and its weight take into a message than to be copied: numpy writes, protobuf reads."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all services of the contract to a server, those of `TEI_SERVICES`."""
    services.add_InfoServicer_to_server(InfoServicer(frontend), server)
    services.add_EmbedServicer_to_server(EmbedServicer(frontend), server)
    services.add_PredictServicer_to_server(PredictServicer(frontend), server)
    services.add_RerankServicer_to_server(RerankServicer(frontend), server)
    services.add_TokenizeServicer_to_server(TokenizeServicer(frontend), server)


class _Servicer:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def _one(self, method: Method[M, R], message: M, context: Context) -> R:
        """The reply to a message, and before it what it took."""
        device = self._frontend.models.get("").card.device
        (reply,) = (await method.answer([message], CALLER.get())).replies
        await context.send_initial_metadata(headers(reply.metadata, device))  # type: ignore[attr-defined]
        return reply

    async def _many(self, method: Method[M, R], messages: Any, context: Context) -> None:
        """`messages` come as `Requests`, in all streams."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            await Grouped(self._frontend, method, caller, stream, await begun(context)).run(messages)


class InfoServicer(services.InfoServicer):
    """tei.v1.Info"""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        frontend = self._frontend
        return info.info_response(frontend.models.get(""), frontend.calls.admission.bounds.requests, frontend.threads)


class EmbedServicer(_Servicer, services.EmbedServicer):
    """tei.v1.Embed"""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service, codec = frontend.embedding.embed, embedding
        self._dense = Method(timed(frontend, codec.dense_request, call_service, codec.dense_replies))
        self._sparse = Method(timed(frontend, codec.sparse_request, call_service, codec.sparse_replies, SPARSE))
        self._all = Method(timed(frontend, codec.all_request, call_service, codec.all_replies))

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._one(self._dense, request, context)

    async def EmbedStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._dense, request_iterator, context)

    async def EmbedSparse(self, request: pb.EmbedSparseRequest, context: Context) -> pb.EmbedSparseResponse:
        return await self._one(self._sparse, request, context)

    async def EmbedSparseStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._sparse, request_iterator, context)

    async def EmbedAll(self, request: pb.EmbedAllRequest, context: Context) -> pb.EmbedAllResponse:
        return await self._one(self._all, request, context)

    async def EmbedAllStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._all, request_iterator, context)


class PredictServicer(_Servicer, services.PredictServicer):
    """tei.v1.Predict"""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service, codec = frontend.classification.texts, prediction
        self._single = Method(timed(frontend, codec.predict_request, call_service, codec.predict_replies, OBJECTS))
        self._pair = Method(
            timed(frontend, codec.pair_request, call_service, codec.predict_replies, OBJECTS), codec.pair_options
        )

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictResponse:
        return await self._one(self._single, request, context)

    async def PredictPair(self, request: pb.PredictPairRequest, context: Context) -> pb.PredictResponse:
        return await self._one(self._pair, request, context)

    async def PredictStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._single, request_iterator, context)

    async def PredictPairStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._pair, request_iterator, context)


class RerankServicer(_Servicer, services.RerankServicer):
    """tei.v1.Rerank"""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        call_service = frontend.ranking.rerank
        self._rerank = Method(timed(frontend, ranking.rerank_request, call_service, ranking.rerank_replies))

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        return await self._one(self._rerank, request, context)

    async def RerankStream(self, request_iterator: Any, context: Context) -> pb.RerankResponse:
        calls, caller, models = self._frontend.calls, CALLER.get(), self._frontend.models
        deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        with calls.stream(caller) as stream, calls.admission.holding(gathered=True) as held:
            gathering = Gathering(calls.admission, stream, models.get("").limits, held)
            request = await gathering.all(request_iterator)
            if deadline is not None:
                caller = replace(caller, remaining=deadline.remaining())
                CALLER.set(caller)
            return await calls.answer(caller, partial(self._one, self._rerank, request, context))


class TokenizeServicer(_Servicer, services.TokenizeServicer):
    """tei.v1.Tokenize; its replies tell no times."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        self._encode, self._decode = Method(self._encoded), Method(self._decoded)

    async def _encoded(self, messages: Sequence[pb.EncodeRequest], _: Caller) -> WrittenReplies[pb.EncodeResponse]:
        offload = self._frontend.offload
        request = await offload(size_of(messages), tokenization.encode_request, messages)
        shown = await self._frontend.models.tokenize(request)
        self._frontend.calls.admission.reserve(shown.size)
        replies = await offload(OBJECTS * shown.size, partial(tokenization.encode_replies, messages), shown)
        return WrittenReplies(replies, shown.size)

    async def _decoded(self, messages: Sequence[pb.DecodeRequest], _: Caller) -> WrittenReplies[pb.DecodeResponse]:
        size = size_of(messages)
        request = await self._frontend.offload(size, tokenization.decode_request, messages)
        return WrittenReplies(tokenization.decode_replies(await self._frontend.models.detokenize(request)), size)

    async def Tokenize(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        (reply,) = (await self._encoded([request], CALLER.get())).replies
        return reply

    async def TokenizeStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._encode, request_iterator, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        (reply,) = (await self._decoded([request], CALLER.get())).replies
        return reply

    async def DecodeStream(self, request_iterator: Any, context: Context) -> None:
        await self._many(self._decode, request_iterator, context)
