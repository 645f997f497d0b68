"""The services of selvage.v1 over gRPC: read the message, call the service, write the reply.

`Interceptor` answers errors. `embed_rpcs.py` has Embed.
"""

from functools import partial
from typing import Any

import grpc

from frontend_service.api.selvage_v1 import codec
from frontend_service.api.selvage_v1.embed_rpcs import EmbeddingServicer, SelvageServicer
from frontend_service.frontend import Frontend
from selvage.v1 import classification_pb2, model_pb2, ranking_pb2
from selvage.v1.classification_pb2_grpc import (
    ClassificationServiceServicer,
    add_ClassificationServiceServicer_to_server,
)
from selvage.v1.embedding_pb2_grpc import add_EmbeddingServiceServicer_to_server
from selvage.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from selvage.v1.ranking_pb2_grpc import RankingServiceServicer, add_RankingServiceServicer_to_server
from shared.caller import TERMS
from shared.value_codec import card_to_pb

Context = grpc.aio.ServicerContext[Any, Any]
LOCAL = ("/selvage.v1.ModelService/",)
"""Beginnings of the methods that need no worker."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all public services to a server, those of `PUBLIC_SERVICES`."""
    add_EmbeddingServiceServicer_to_server(EmbeddingServicer(frontend), server)
    add_RankingServiceServicer_to_server(RankingServicer(frontend), server)
    add_ClassificationServiceServicer_to_server(ClassificationServicer(frontend), server)
    add_ModelServiceServicer_to_server(ModelServicer(frontend), server)


class RankingServicer(SelvageServicer, RankingServiceServicer):
    """The service selvage.v1.RankingService."""

    async def Rerank(self, message: ranking_pb2.RerankRequest, context: Context) -> ranking_pb2.RerankResponse:
        request = await self._read(codec.rerank_request_from_pb, message)
        reranked = await self._frontend.ranking.rerank(request, TERMS.get())
        return await self._reply(reranked.answer, reranked.size, partial(codec.rerank_response_to_pb, reranked))

    async def Score(self, message: ranking_pb2.ScoreRequest, context: Context) -> ranking_pb2.ScoreResponse:
        request = await self._read(codec.score_request_from_pb, message)
        answer = await self._frontend.ranking.score(request, TERMS.get())
        return await self._reply(answer, answer.size, partial(codec.score_response_to_pb, request, answer))

    async def MaxSim(self, message: ranking_pb2.MaxSimRequest, context: Context) -> ranking_pb2.MaxSimResponse:
        request = await self._read(codec.max_sim_request_from_pb, message)
        answer = await self._frontend.ranking.max_sim(request, TERMS.get())
        return await self._reply(answer, answer.size, partial(codec.max_sim_response_to_pb, request, answer))


class ClassificationServicer(SelvageServicer, ClassificationServiceServicer):
    """The service selvage.v1.ClassificationService."""

    async def Classify(
        self, message: classification_pb2.ClassifyRequest, context: Context
    ) -> classification_pb2.ClassifyResponse:
        request = await self._read(codec.classify_request_from_pb, message)
        classified = await self._frontend.classification.texts(request, TERMS.get())
        answer = classified.answer
        return await self._reply(answer, answer.size, partial(codec.classify_response_to_pb, classified))

    async def ClassifyTokens(
        self, message: classification_pb2.ClassifyTokensRequest, context: Context
    ) -> classification_pb2.ClassifyTokensResponse:
        request = await self._read(codec.classify_tokens_request_from_pb, message)
        classified = await self._frontend.classification.tokens(request, TERMS.get())
        answer = classified.answer
        return await self._reply(answer, answer.size, partial(codec.classify_tokens_response_to_pb, classified))


class ModelServicer(SelvageServicer, ModelServiceServicer):
    """The service selvage.v1.ModelService. Its replies have no times."""

    async def GetModel(self, message: model_pb2.GetModelRequest, context: Context) -> model_pb2.GetModelResponse:
        return codec.get_model_response_to_pb(self._frontend.models.get(message.model), self._frontend.limits)

    async def ListModels(self, message: model_pb2.ListModelsRequest, context: Context) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(cards=map(card_to_pb, self._frontend.models.cards()))

    async def Tokenize(self, message: model_pb2.TokenizeRequest, context: Context) -> model_pb2.TokenizeResponse:
        shown = await self._frontend.models.tokenize(await self._read(codec.tokenize_request_from_pb, message))
        return await self._pipeline.offload(shown.size, codec.tokenize_response_to_pb, shown)

    async def Detokenize(self, message: model_pb2.DetokenizeRequest, context: Context) -> model_pb2.DetokenizeResponse:
        written = await self._frontend.models.detokenize(await self._read(codec.detokenize_request_from_pb, message))
        return await self._pipeline.offload(written.size, codec.detokenize_response_to_pb, written)
