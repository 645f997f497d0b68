"""The services of selvage.v1 over gRPC: read the message, call the service, write the reply.

`Interceptor` answers errors. EmbedStream has batches of one caller, each a call of its own to the service, with its own
outcome.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc

from frontend_service.api.selvage_v1 import codec
from frontend_service.api.selvage_v1.codec import EmbedReply
from frontend_service.api.streams import (
    REQUEST_BYTES,
    NotRead,
    Replies,
    RequestStream,
    TwoWayStream,
    begin_replies,
)
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer
from selvage.v1 import classification_pb2, model_pb2, ranking_pb2
from selvage.v1.classification_pb2_grpc import (
    ClassificationServiceServicer,
    add_ClassificationServiceServicer_to_server,
)
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceServicer, add_EmbeddingServiceServicer_to_server
from selvage.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from selvage.v1.ranking_pb2_grpc import RankingServiceServicer, add_RankingServiceServicer_to_server
from shared.caller import Caller, Deadline, RequestTerms
from shared.errors import DeadlineExceeded, Overloaded, ResultTooLarge, SelvageError
from shared.server.admission import OpenStream
from shared.server.interceptor import CALLER
from shared.value_codec import card_to_pb

Context = grpc.aio.ServicerContext[Any, Any]
Q = TypeVar("Q")
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
LOCAL = ("/selvage.v1.ModelService/",)
"""Beginnings of the methods that need no worker."""
TRIES = 16
"""Most tries of a part that misses its deadline while other parts of its stream are answered: the part itself may be
what takes so long."""


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all public services to a server, those of `PUBLIC_SERVICES`."""
    add_EmbeddingServiceServicer_to_server(EmbeddingServicer(frontend), server)
    add_RankingServiceServicer_to_server(RankingServicer(frontend), server)
    add_ClassificationServiceServicer_to_server(ClassificationServicer(frontend), server)
    add_ModelServiceServicer_to_server(ModelServicer(frontend), server)


class _SelvageServicer:
    """What all methods have in common."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._pipeline = frontend, frontend.pipeline

    def _terms(self) -> RequestTerms:
        """The terms on which the current call is served."""
        return self._frontend.calls.terms(CALLER.get())

    async def _read(self, read: Callable[[Any], Q], message: Any) -> Q:
        """The request of the current call's message. Raises what `read` raises."""
        return await self._pipeline.offload(self._frontend.calls.admission.message_size, read, message)

    async def _reply(self, answer: Answer, size: int, write: Callable[[], R]) -> R:
        """The reply, of about `size` bytes, with its times."""
        reply, timing = await self._pipeline.reply(answer, size, write)
        reply.timing.CopyFrom(codec.timing_to_pb(timing))
        return reply


class EmbeddingServicer(_SelvageServicer, EmbeddingServiceServicer):
    """The service selvage.v1.EmbeddingService."""

    async def Embed(self, message: EmbedRequest, context: Context) -> EmbedReply:
        return await self.embed(message, self._frontend.calls.admission.message_size, CALLER.get())

    async def embed(self, message: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        """Answers a message of about `size` bytes."""
        terms = self._frontend.calls.terms(caller)
        read = partial(codec.embed_request_from_pb, limits=self._frontend.limits)
        request = await self._pipeline.offload(size, read, message)
        answer = await self._frontend.embedding.embed(request, terms)
        return await self._reply(answer, answer.size, partial(codec.embed_response_to_pb, request, answer))

    async def EmbedStream(self, messages: Any, context: Context) -> None:
        """Answers every batch. `messages` are those of the interceptor."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            replies = await begin_replies(context)
            await BatchStream(self._frontend, self.embed, caller, stream, replies).run(messages)


class RankingServicer(_SelvageServicer, RankingServiceServicer):
    """The service selvage.v1.RankingService."""

    async def Rerank(self, message: ranking_pb2.RerankRequest, context: Context) -> ranking_pb2.RerankResponse:
        terms, request = self._terms(), await self._read(codec.rerank_request_from_pb, message)
        reranked = await self._frontend.ranking.rerank(request, terms)
        return await self._reply(reranked.answer, reranked.size, partial(codec.rerank_response_to_pb, reranked))

    async def Score(self, message: ranking_pb2.ScoreRequest, context: Context) -> ranking_pb2.ScoreResponse:
        terms, request = self._terms(), await self._read(codec.score_request_from_pb, message)
        answer = await self._frontend.ranking.score(request, terms)
        return await self._reply(answer, answer.size, partial(codec.score_response_to_pb, request, answer))

    async def MaxSim(self, message: ranking_pb2.MaxSimRequest, context: Context) -> ranking_pb2.MaxSimResponse:
        terms, request = self._terms(), await self._read(codec.max_sim_request_from_pb, message)
        answer = await self._frontend.ranking.max_sim(request, terms)
        return await self._reply(answer, answer.size, partial(codec.max_sim_response_to_pb, request, answer))


class ClassificationServicer(_SelvageServicer, ClassificationServiceServicer):
    """The service selvage.v1.ClassificationService."""

    async def Classify(
        self, message: classification_pb2.ClassifyRequest, context: Context
    ) -> classification_pb2.ClassifyResponse:
        terms, request = self._terms(), await self._read(codec.classify_request_from_pb, message)
        classified = await self._frontend.classification.texts(request, terms)
        answer = classified.answer
        return await self._reply(answer, answer.size, partial(codec.classify_response_to_pb, classified))

    async def ClassifyTokens(
        self, message: classification_pb2.ClassifyTokensRequest, context: Context
    ) -> classification_pb2.ClassifyTokensResponse:
        terms, request = self._terms(), await self._read(codec.classify_tokens_request_from_pb, message)
        classified = await self._frontend.classification.tokens(request, terms)
        answer = classified.answer
        return await self._reply(answer, answer.size, partial(codec.classify_tokens_response_to_pb, classified))


class ModelServicer(_SelvageServicer, ModelServiceServicer):
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


Embed = Callable[[EmbedRequest, int, Caller], Awaitable[EmbedReply]]
"""A function that answers a message of about so many bytes."""


class BatchStream:
    """Answers every batch of an EmbedStream: with its vectors, in several replies where they do not fit into one, or
    with one error."""

    def __init__(self, frontend: Frontend, embed: Embed, caller: Caller, stream: OpenStream, replies: Replies) -> None:
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._parts_done = 0
        self._requests = TwoWayStream(frontend.calls.admission, stream, replies, self._answer_batch)

    async def run(self, batches: RequestStream[EmbedStreamRequest]) -> None:
        """Reads and answers all batches.

        Raises SelvageError where a message is no batch, where the caller does not read, or where the stream is ended.
        """
        await self._requests.run(batches)

    async def _answer_batch(self, batch: EmbedStreamRequest, size: int) -> None:
        head, parts = EmbedStreamResponse(id=batch.id), [_BatchPart(0, batch.request, size)]
        del batch  # a large batch is not held once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as let_go:
                while parts:
                    await self._answer_last_part(parts, head, let_go)
            return
        except NotRead:
            raise
        except SelvageError as error:
            head.more = False
            head.error.CopyFrom(codec.stream_error_to_pb(error))
            parts.clear()
        # Outside of the except block: an error keeps the frames that it passed in memory, and the caller may take long
        # to read this.
        await self._requests.send(head.SerializeToString())

    async def _answer_last_part(
        self, parts: "list[_BatchPart]", head: EmbedStreamResponse, let_go: Callable[[int], None]
    ) -> None:
        """Answers the last of `parts`, or replaces it by its halves. `head` has all of a reply but the rows."""
        part = parts.pop()
        head.start, head.more = part.start, bool(parts)
        reply = await self._compute(part, head)
        if reply is None:
            parts += await self._frontend.pipeline.offload(part.size, _BatchPart.halves, part)
            return
        let_go(part.size)
        self._parts_done += 1
        del part
        await self._requests.send(reply)

    async def _compute(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes | None:
        """Returns the reply to a part, or None where it would be too large and the part can be halved: not where one
        text alone is too large, which the error names by its place in the batch, since the whole batch was asked first.

        A part that is refused while others of its stream take the room is tried again when one of them ends; a large
        part is not, since it would wait in memory. A part is also tried again when it waited for others until the
        default time of a call was over.
        """
        tries = 0
        while True:
            parts_done_before = self._parts_done
            try:
                return await self._call(part, head)
            except ResultTooLarge as error:
                if part.texts < 2 or error.field:
                    raise
                return None
            except DeadlineExceeded:
                tries += 1
                waited_for_others = self._deadline is None and self._parts_done > parts_done_before
                if not waited_for_others or tries == TRIES or part.size > REQUEST_BYTES:
                    raise
            except Overloaded:
                if part.size > REQUEST_BYTES or not await self._requests.wait_for_another():
                    raise

    async def _call(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes:
        """Computes a part as one call."""
        calls, pipeline = self._frontend.calls, self._frontend.pipeline

        async def work(caller: Caller) -> bytes:
            response = await self._embed(part.request, part.size, caller)
            return await pipeline.offload(calls.admission.reserved, response.serialize_in, head)

        return await calls.answer_in_stream(self._caller, self._deadline, work)


@dataclass(slots=True)
class _BatchPart:
    """Consecutive texts of a batch, as a request of about `size` bytes. `start`: the place of the first text."""

    start: int
    request: EmbedRequest
    size: int

    @property
    def texts(self) -> int:
        """How many texts it has; the chunks of a document are one, since they are not computed apart."""
        return 1 if self.request.late_chunking else max(len(self.request.texts), len(self.request.tokenized))

    def halves(self) -> "list[_BatchPart]":
        """Both halves, the last one first."""
        (first_start, first), (last_start, last) = codec.halve_request(self.request)
        half_size = self.size // 2
        return [
            _BatchPart(self.start + last_start, last, self.size - half_size),
            _BatchPart(self.start + first_start, first, half_size),
        ]
