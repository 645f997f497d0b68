"""The services of selvage.v1 over gRPC: message -> exchange -> message. `Interceptor` answers errors."""

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import grpc

from frontend_service.api.selvage_v1 import codec
from frontend_service.api.selvage_v1.batch_stream import BatchStream
from frontend_service.api.selvage_v1.codec import EmbedReply
from frontend_service.api.streams import begin_replies
from frontend_service.application.frontend import Exchange, Frontend
from frontend_service.domain.answer import Answer, FinishedAnswer
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.v1.classification_pb2_grpc import (
    ClassificationServiceServicer,
    add_ClassificationServiceServicer_to_server,
)
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceServicer, add_EmbeddingServiceServicer_to_server
from selvage.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from selvage.v1.ranking_pb2_grpc import RankingServiceServicer, add_RankingServiceServicer_to_server
from shared.caller import Caller
from shared.server.interceptor import CALLER
from shared.value_codec import card_to_pb

Context = grpc.aio.ServicerContext[Any, Any]
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | FinishedAnswer)
R = TypeVar(
    "R",
    EmbedReply,
    ranking_pb2.RerankResponse,
    ranking_pb2.ScoreResponse,
    ranking_pb2.MaxSimResponse,
    classification_pb2.ClassifyResponse,
    classification_pb2.ClassifyTokensResponse,
)
"""Replies that have times."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all public services to a server, those of `PUBLIC_SERVICES`."""
    add_EmbeddingServiceServicer_to_server(EmbeddingServicer(frontend), server)
    add_RankingServiceServicer_to_server(RankingServicer(frontend), server)
    add_ClassificationServiceServicer_to_server(ClassificationServicer(frontend), server)
    add_ModelServiceServicer_to_server(ModelServicer(frontend), server)


class _ExchangeServicer:
    """Answers messages by exchanges, whose replies have times."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    def _answer_call(self, exchange: Exchange[Any, Q, A, R], message: Any) -> Coroutine[Any, Any, R]:
        return self._answer_message(exchange, message, self._frontend.calls.admission.message_size, CALLER.get())

    async def _answer_message(self, exchange: Exchange[Any, Q, A, R], message: Any, size: int, caller: Caller) -> R:
        """Answers a message of about `size` bytes."""
        reply, timing = await self._frontend.exchange(exchange, message, size, caller)
        reply.timing.CopyFrom(codec.timing_to_pb(timing))
        return reply


class EmbeddingServicer(_ExchangeServicer, EmbeddingServiceServicer):
    """The service selvage.v1.EmbeddingService."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        self._embed = Exchange(
            read=partial(codec.embed_request_from_pb, limits=frontend.limits),
            call_service=frontend.embedding.embed,
            write=codec.embed_response_to_pb,
        )

    async def Embed(self, request: embedding_pb2.EmbedRequest, context: Context) -> EmbedReply:
        return await self._answer_call(self._embed, request)

    async def EmbedStream(self, request_iterator: Any, context: Context) -> None:
        """Answers every batch. `request_iterator` is a `Requests` of the interceptor."""
        caller, embed = CALLER.get(), partial(self._answer_message, self._embed)
        with self._frontend.calls.stream(caller) as stream:
            replies = await begin_replies(context)
            await BatchStream(self._frontend, embed, caller, stream, replies).run(request_iterator)


class RankingServicer(_ExchangeServicer, RankingServiceServicer):
    """The service selvage.v1.RankingService."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        service = frontend.ranking
        self._rerank = Exchange(
            read=codec.rerank_request_from_pb, call_service=service.rerank, write=codec.rerank_response_to_pb
        )
        self._score = Exchange(
            read=codec.score_request_from_pb, call_service=service.score, write=codec.score_response_to_pb
        )
        self._max_sim = Exchange(
            read=codec.max_sim_request_from_pb, call_service=service.max_sim, write=codec.max_sim_response_to_pb
        )

    async def Rerank(self, request: ranking_pb2.RerankRequest, context: Context) -> ranking_pb2.RerankResponse:
        return await self._answer_call(self._rerank, request)

    async def Score(self, request: ranking_pb2.ScoreRequest, context: Context) -> ranking_pb2.ScoreResponse:
        return await self._answer_call(self._score, request)

    async def MaxSim(self, request: ranking_pb2.MaxSimRequest, context: Context) -> ranking_pb2.MaxSimResponse:
        return await self._answer_call(self._max_sim, request)


class ClassificationServicer(_ExchangeServicer, ClassificationServiceServicer):
    """The service selvage.v1.ClassificationService."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend)
        service = frontend.classification
        self._texts = Exchange(
            read=codec.classify_request_from_pb, call_service=service.texts, write=codec.classify_response_to_pb
        )
        self._tokens = Exchange(
            read=codec.classify_tokens_request_from_pb,
            call_service=service.tokens,
            write=codec.classify_tokens_response_to_pb,
        )

    async def Classify(
        self, request: classification_pb2.ClassifyRequest, context: Context
    ) -> classification_pb2.ClassifyResponse:
        return await self._answer_call(self._texts, request)

    async def ClassifyTokens(
        self, request: classification_pb2.ClassifyTokensRequest, context: Context
    ) -> classification_pb2.ClassifyTokensResponse:
        return await self._answer_call(self._tokens, request)


class ModelServicer(ModelServiceServicer):
    """The service selvage.v1.ModelService."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._models = frontend.models

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Context) -> model_pb2.GetModelResponse:
        return codec.get_model_response_to_pb(self._models.get(request.model))

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Context) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(cards=map(card_to_pb, self._models.cards()))

    async def Tokenize(self, request: model_pb2.TokenizeRequest, context: Context) -> model_pb2.TokenizeResponse:
        texts = await self._frontend.offload(
            self._frontend.calls.admission.message_size, codec.tokenize_request_from_pb, request
        )
        shown = await self._models.tokenize(texts)
        return await self._frontend.offload(shown.size, codec.tokenize_response_to_pb, shown)

    async def Detokenize(self, request: model_pb2.DetokenizeRequest, context: Context) -> model_pb2.DetokenizeResponse:
        return codec.detokenize_response_to_pb(await self._models.detokenize(codec.detokenize_request_from_pb(request)))
