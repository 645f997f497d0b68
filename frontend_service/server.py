"""The public services: message -> request -> service -> message."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import grpc

from frontend_service.classification import Classification
from frontend_service.codec import classification, embedding, fields, model, ranking
from frontend_service.embedding import Embedding
from frontend_service.ranking import TOKEN_MATCH_BYTES, Ranking
from frontend_service.service import SHOWN_TOKEN_BYTES, Answer, Service
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.v1.classification_pb2_grpc import (
    ClassificationServiceServicer,
    add_ClassificationServiceServicer_to_server,
)
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceServicer, add_EmbeddingServiceServicer_to_server
from selvage.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from selvage.v1.ranking_pb2_grpc import RankingServiceServicer, add_RankingServiceServicer_to_server
from shared.codec import card_to_pb
from shared.deadline import Deadline

SERVICES = tuple(f"selvage.v1.{name}Service" for name in ("Embedding", "Ranking", "Classification", "Model"))
Context = grpc.aio.ServicerContext[Any, Any]
A = TypeVar("A")
R = TypeVar(
    "R",
    embedding_pb2.EmbedResponse,
    ranking_pb2.RerankResponse,
    ranking_pb2.ScoreResponse,
    ranking_pb2.MaxSimResponse,
    classification_pb2.ClassifyResponse,
    classification_pb2.ClassifyTokensResponse,
)
"""Replies that tell times."""


def register(service: Service, server: grpc.aio.Server, default_timeout: float) -> None:
    """Adds all public services to a server; calls without a deadline get `default_timeout` seconds."""
    add_EmbeddingServiceServicer_to_server(EmbeddingServicer(service, default_timeout), server)
    add_RankingServiceServicer_to_server(RankingServicer(service, default_timeout), server)
    add_ClassificationServiceServicer_to_server(ClassificationServicer(service, default_timeout), server)
    add_ModelServiceServicer_to_server(ModelServicer(service), server)


class _Timed:
    def __init__(self, service: Service, default_timeout: float) -> None:
        self._service = service
        self._default_timeout = default_timeout

    def _deadline(self, context: Context) -> Deadline:
        remaining = context.time_remaining()
        return Deadline.after(self._default_timeout if remaining is None else remaining)

    async def _reply(self, answer: Answer, size: int, make: Callable[[A], R], argument: A) -> R:
        """`make(argument)`, in a thread where it handles many bytes; its time is the last that the reply tells."""
        reply = await self._service.offload(size, make, argument)
        reply.timing.CopyFrom(fields.timing(answer, self._service.clock()))
        return reply


class EmbeddingServicer(_Timed, EmbeddingServiceServicer):
    """selvage.v1.EmbeddingService"""

    def __init__(self, service: Service, default_timeout: float) -> None:
        super().__init__(service, default_timeout)
        self._embedding = Embedding(service)

    async def Embed(self, request: embedding_pb2.EmbedRequest, context: Context) -> embedding_pb2.EmbedResponse:
        embed = await self._service.offload(request.ByteSize(), embedding.embed_request, request)
        answer = await self._embedding.embed(embed, self._deadline(context))
        return await self._reply(answer, answer.size, partial(embedding.embed_response, answer), embed)

    async def EmbedStream(self, request_iterator: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "EmbedStream is not built yet; use Embed")


class RankingServicer(_Timed, RankingServiceServicer):
    """selvage.v1.RankingService"""

    def __init__(self, service: Service, default_timeout: float) -> None:
        super().__init__(service, default_timeout)
        self._ranking = Ranking(service)

    async def Rerank(self, request: ranking_pb2.RerankRequest, context: Context) -> ranking_pb2.RerankResponse:
        score = await self._service.offload(request.ByteSize(), ranking.rerank_request, request)
        top_n = request.top_n if request.HasField("top_n") else None
        shown = request.return_documents
        answer, ranked, explanations = await self._ranking.rerank(score, top_n, self._deadline(context), shown)
        matches = sum(map(len, explanations))
        size = matches * TOKEN_MATCH_BYTES + sum(len(score.documents[index]) for index, _ in ranked) * shown
        finish = partial(ranking.rerank_response, answer, ranked, explanations)
        return await self._reply(answer, size, finish, score.documents if shown else None)

    async def Score(self, request: ranking_pb2.ScoreRequest, context: Context) -> ranking_pb2.ScoreResponse:
        score = await self._service.offload(request.ByteSize(), ranking.score_request, request)
        answer = await self._ranking.score(score, self._deadline(context))
        return await self._reply(answer, answer.size, partial(ranking.score_response, answer), score)

    async def MaxSim(self, request: ranking_pb2.MaxSimRequest, context: Context) -> ranking_pb2.MaxSimResponse:
        max_sim = await self._service.offload(request.ByteSize(), ranking.max_sim_request, request)
        answer = await self._ranking.max_sim(max_sim, self._deadline(context))
        return await self._reply(answer, answer.size, partial(ranking.max_sim_response, max_sim), answer)


class ClassificationServicer(_Timed, ClassificationServiceServicer):
    """selvage.v1.ClassificationService"""

    def __init__(self, service: Service, default_timeout: float) -> None:
        super().__init__(service, default_timeout)
        self._classification = Classification(service)

    async def Classify(
        self, request: classification_pb2.ClassifyRequest, context: Context
    ) -> classification_pb2.ClassifyResponse:
        classify = await self._service.offload(request.ByteSize(), classification.classify_request, request)
        card, answer = await self._classification.texts(classify, self._deadline(context))
        return await self._reply(answer, answer.size, partial(classification.classify_response, card), answer)

    async def ClassifyTokens(
        self, request: classification_pb2.ClassifyTokensRequest, context: Context
    ) -> classification_pb2.ClassifyTokensResponse:
        classify = await self._service.offload(request.ByteSize(), classification.classify_tokens_request, request)
        card, tokens = await self._classification.tokens(classify, self._deadline(context))
        finish = partial(classification.classify_tokens_response, card)
        return await self._reply(tokens.answer, tokens.answer.size, finish, tokens)


class ModelServicer(ModelServiceServicer):
    """selvage.v1.ModelService"""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Context) -> model_pb2.GetModelResponse:
        served = self._service.model(request.model)
        limits = model.limits_to_pb(self._service.limits, served.queued_tokens)
        return model_pb2.GetModelResponse(card=card_to_pb(served.card), limits=limits)

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Context) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(cards=[card_to_pb(self._service.model("").card)])

    async def Tokenize(self, request: model_pb2.TokenizeRequest, context: Context) -> model_pb2.TokenizeResponse:
        tokenize = await self._service.offload(request.ByteSize(), model.tokenize_request, request)
        name = self._service.model(request.model).card.id
        texts = await self._service.tokenize(tokenize)
        tokens = sum(len(text.encoding) for text in texts)
        return await self._service.offload(tokens * SHOWN_TOKEN_BYTES, partial(model.tokenize_response, name), texts)

    async def Detokenize(self, request: model_pb2.DetokenizeRequest, context: Context) -> model_pb2.DetokenizeResponse:
        name = self._service.model(request.model).card.id
        ids = fields.id_lists(request.tokenized)
        texts = await self._service.detokenize(request.model, ids, request.skip_special_tokens)
        return model_pb2.DetokenizeResponse(model=name, texts=texts)
