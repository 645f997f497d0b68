"""The services of tei.v1 over gRPC: read the message, call the service, write the reply.

`Interceptor` answers errors, in the form that `tei_error` gives them.

Each message of a stream is a request, answered in order; those of a RerankStream become one request.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from frontend_service.api.streams import REQUEST_BYTES, Replies, RequestStream, TwoWayStream, begin_replies
from frontend_service.api.tei_v1 import messages as codec
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import ClassifyRequest, EmbedRequest, FieldNames, field_as
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer
from shared.caller import TERMS, Caller, Deadline
from shared.errors import (
    InvalidInput,
    LimitExceeded,
    Overloaded,
    SelvageError,
    UnknownModel,
    UnsupportedTask,
    printable,
)
from shared.server.admission import Admission, Holding, OpenStream
from shared.server.interceptor import CALLER
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc as services

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
R = TypeVar("R", pb.EmbedResponse, pb.EmbedSparseResponse, pb.EmbedAllResponse, pb.PredictResponse, pb.RerankResponse)
"""Replies that have times."""
AnswerMessage = Callable[[M, int], Awaitable[Message]]
"""A function that answers a message of so many bytes."""
OBJECT_WEIGHT = 16
"""Times that a byte of scores takes longer into messages, an object each, than to be copied."""
SPARSE_WEIGHT = 4
"""Times that an index and its weight take longer into a message than to be copied: numpy writes, protobuf reads."""
LEAST_PAUSE = 0.1
"""Shortest pause before a refused message is tried again, in seconds."""
PACKAGE, LOCAL = "/tei.v1.", ("/tei.v1.Info/", "/tei.v1.Tokenize/")
"""The beginning of all methods of the contract, and of those that need no worker."""
PREFIXES = {InvalidInput: "Input validation error: ", Overloaded: "Model is overloaded: "}
"""The beginning of a message, by class of error."""
_SIDE = {"truncation_side": "truncation_direction"}
_INPUT: FieldNames = {**_SIDE, **dict.fromkeys(("texts", "texts[]", "text_pairs", "text_pairs[]"), "inputs")}
FIELDS: dict[str, FieldNames] = {
    "PredictPair": {**_INPUT, "texts[]": "inputs[0]", "text_pairs[]": "inputs[1]"},
    "Rerank": {**_SIDE, "return_documents": "return_text", "documents": "texts"},
    "Decode": {"tokenized": "ids", "tokenized[]": "ids"},
}
"""Our names of fields by method; in all other methods texts are `inputs`."""


def tei_error(method: str, error: SelvageError) -> SelvageError:
    """Adapts an error of a call to tei.v1, whose full name is `method`. The new error has no traceback.

    Errors of other contracts stay as they are.
    """
    if not method.startswith(PACKAGE):
        return error
    names = FIELDS.get(method.rpartition("/")[2].removesuffix("Stream"), _INPUT)
    field, message = printable(field_as(error.field, names)), printable(error.message)
    prefix = next((prefix for kind, prefix in PREFIXES.items() if isinstance(error, kind)), "")
    wrong_model = isinstance(error, UnknownModel) or (
        isinstance(error, UnsupportedTask) and field in codec.MODEL_FIELDS
    )
    if wrong_model:
        prefix = field = ""
    adapted = type(error)(prefix + message, field=field, retry_after=error.retry_after)
    if wrong_model:
        adapted.status = "FAILED_PRECONDITION"
    return adapted


def register(frontend: Frontend, server: grpc.aio.Server) -> None:
    """Adds all services of the contract to a server, those of `TEI_SERVICES`."""
    services.add_InfoServicer_to_server(InfoServicer(frontend), server)
    services.add_EmbedServicer_to_server(EmbedServicer(frontend), server)
    services.add_PredictServicer_to_server(PredictServicer(frontend), server)
    services.add_RerankServicer_to_server(RerankServicer(frontend), server)
    services.add_TokenizeServicer_to_server(TokenizeServicer(frontend), server)


class _TeiServicer:
    """What all methods have in common."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._pipeline = frontend, frontend.pipeline

    async def _reply(self, answer: Answer, size: int, write: Callable[[], R], start: float) -> R:
        """The reply, of about `size` bytes, with its times; `start`: when reading the message began."""
        reply, timing = await self._pipeline.reply(answer, size, write)
        codec.put_times(reply.metadata, timing, time.monotonic() - start)
        return reply

    async def _answer_unary(self, answer: Callable[[M, int], Awaitable[R]], message: M, context: Context) -> R:
        """Answers a message, with the times in the headers before the reply."""
        device = self._frontend.models.get("").card.device
        reply = await answer(message, self._frontend.calls.admission.message_size)
        await context.send_initial_metadata(codec.metadata_headers(reply.metadata, device))
        return reply

    async def _answer_stream(self, answer: AnswerMessage[M], messages: Any, context: Context) -> None:
        """Answers all messages of a stream, which are those of the interceptor."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            await MessageStream(self._frontend, answer, caller, stream, await begin_replies(context)).run(messages)


class InfoServicer(services.InfoServicer):
    """The service tei.v1.Info."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def Info(self, message: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        frontend = self._frontend
        requests = frontend.calls.admission.bounds.requests
        return codec.info_response_to_pb(frontend.models.get(""), frontend.limits, requests, frontend.thread_count)


class EmbedServicer(_TeiServicer, services.EmbedServicer):
    """The service tei.v1.Embed."""

    async def _embed(
        self,
        read: Callable[[M], EmbedRequest],
        write: Callable[[EmbedRequest, Answer], R],
        weight: int,
        message: M,
        size: int,
    ) -> R:
        """Answers a message. A byte of the answer takes `weight` times longer to write than to copy."""
        start = time.monotonic()
        request = await self._pipeline.offload(size, read, message)
        answer = await self._frontend.embedding.embed(request, TERMS.get())
        return await self._reply(answer, weight * answer.size, partial(write, request, answer), start)

    @property
    def _dense(self) -> Callable[[pb.EmbedRequest, int], Awaitable[pb.EmbedResponse]]:
        return partial(self._embed, codec.embed_request_from_pb, codec.embed_response_to_pb, 1)

    @property
    def _sparse(self) -> Callable[[pb.EmbedSparseRequest, int], Awaitable[pb.EmbedSparseResponse]]:
        read, write = codec.embed_sparse_request_from_pb, codec.embed_sparse_response_to_pb
        return partial(self._embed, read, write, SPARSE_WEIGHT)

    @property
    def _all(self) -> Callable[[pb.EmbedAllRequest, int], Awaitable[pb.EmbedAllResponse]]:
        return partial(self._embed, codec.embed_all_request_from_pb, codec.embed_all_response_to_pb, 1)

    async def Embed(self, message: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._answer_unary(self._dense, message, context)

    async def EmbedStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._dense, messages, context)

    async def EmbedSparse(self, message: pb.EmbedSparseRequest, context: Context) -> pb.EmbedSparseResponse:
        return await self._answer_unary(self._sparse, message, context)

    async def EmbedSparseStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._sparse, messages, context)

    async def EmbedAll(self, message: pb.EmbedAllRequest, context: Context) -> pb.EmbedAllResponse:
        return await self._answer_unary(self._all, message, context)

    async def EmbedAllStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._all, messages, context)


class PredictServicer(_TeiServicer, services.PredictServicer):
    """The service tei.v1.Predict."""

    async def _predict(self, read: Callable[[M], ClassifyRequest], message: M, size: int) -> pb.PredictResponse:
        start = time.monotonic()
        request = await self._pipeline.offload(size, read, message)
        classified = await self._frontend.classification.texts(request, TERMS.get())
        write = partial(codec.predict_response_to_pb, request, classified)
        return await self._reply(classified.answer, OBJECT_WEIGHT * classified.answer.size, write, start)

    async def _single(self, message: pb.PredictRequest, size: int) -> pb.PredictResponse:
        return await self._predict(codec.predict_request_from_pb, message, size)

    async def _pair(self, message: pb.PredictPairRequest, size: int) -> pb.PredictResponse:
        return await self._predict(codec.predict_pair_request_from_pb, message, size)

    async def Predict(self, message: pb.PredictRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._single, message, context)

    async def PredictPair(self, message: pb.PredictPairRequest, context: Context) -> pb.PredictResponse:
        return await self._answer_unary(self._pair, message, context)

    async def PredictStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._single, messages, context)

    async def PredictPairStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._pair, messages, context)


class RerankServicer(_TeiServicer, services.RerankServicer):
    """The service tei.v1.Rerank."""

    async def _rerank(self, message: pb.RerankRequest, size: int) -> pb.RerankResponse:
        start = time.monotonic()
        request = await self._pipeline.offload(size, codec.rerank_request_from_pb, message)
        reranked = await self._frontend.ranking.rerank(request, TERMS.get())
        write = partial(codec.rerank_response_to_pb, request, reranked)
        return await self._reply(reranked.answer, reranked.size, write, start)

    async def Rerank(self, message: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        return await self._answer_unary(self._rerank, message, context)

    async def RerankStream(self, messages: Any, context: Context) -> pb.RerankResponse:
        calls, caller, limits = self._frontend.calls, CALLER.get(), self._frontend.limits
        deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        with calls.stream(caller) as stream, calls.admission.holding() as held:
            self._frontend.models.get("")  # where no model is served, nothing is read
            gathering = RerankGathering(calls.admission, stream, limits, held)
            request = await gathering.gather(messages)
            if deadline is not None:
                caller = replace(caller, remaining=deadline.remaining())

            async def work() -> pb.RerankResponse:
                calls.admission.note_message(held.held)
                return await self._answer_unary(self._rerank, request, context)

            return await calls.answer(caller, work)


class TokenizeServicer(_TeiServicer, services.TokenizeServicer):
    """The service tei.v1.Tokenize. Its replies have no times."""

    async def _encode(self, message: pb.EncodeRequest, size: int) -> pb.EncodeResponse:
        request = await self._pipeline.offload(size, codec.encode_request_from_pb, message)
        shown = await self._frontend.models.tokenize(request)
        write = partial(codec.encode_response_to_pb, message)
        return await self._pipeline.offload(OBJECT_WEIGHT * shown.size, write, shown)

    async def _decode(self, message: pb.DecodeRequest, size: int) -> pb.DecodeResponse:
        request = await self._pipeline.offload(size, codec.decode_request_from_pb, message)
        return codec.decode_response_to_pb(await self._frontend.models.detokenize(request))

    async def Tokenize(self, message: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        return await self._encode(message, self._frontend.calls.admission.message_size)

    async def TokenizeStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._encode, messages, context)

    async def Decode(self, message: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        return await self._decode(message, self._frontend.calls.admission.message_size)

    async def DecodeStream(self, messages: Any, context: Context) -> None:
        await self._answer_stream(self._decode, messages, context)


class MessageStream(Generic[M]):
    """Answers every message of a stream as a call of its own. The replies come in the order of the messages.

    The first error ends the stream, once all messages before it are answered.
    """

    def __init__(
        self, frontend: Frontend, answer: AnswerMessage[M], caller: Caller, stream: OpenStream, replies: Replies
    ) -> None:
        self._frontend, self._answer, self._caller, self._stream = frontend, answer, caller, stream
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._messages = TwoWayStream[M](frontend.calls.admission, stream, replies, self._answer_message)
        self._last_sent = asyncio.Event()  # the reply to the last message that was begun
        self._last_sent.set()

    async def run(self, messages: RequestStream[M]) -> None:
        """Reads and answers all messages. Raises the error of the first message that has one, or of the stream."""
        await self._messages.run(messages)

    async def _answer_message(self, message: M, size: int) -> None:
        before, self._last_sent = self._last_sent, asyncio.Event()
        sent = self._last_sent
        try:
            with self._frontend.calls.admission.holding() as held:
                (held.add if size > REQUEST_BYTES else held.force)(size)
                reply = await self._reply(message, size, before)
        except SelvageError:
            await before.wait()
            raise
        await self._messages.send(reply, after=before)
        sent.set()

    async def _reply(self, message: M, size: int, before: asyncio.Event) -> bytes:
        """The reply to a message, whose predecessors are all answered once `before` is set.

        A message that is refused for lack of room is tried again: its own stream may take the room, so first when all
        messages before it are answered, then after pauses. A large message does not wait in memory for that. The first
        one in line does not wait for the replies behind it, which wait for its own.
        """
        admission, paused = self._frontend.calls.admission, 0.0
        most = admission.bounds.read_seconds
        while True:
            try:
                with admission.beside(self._stream.results) if before.is_set() else nullcontext():
                    return await self._call(message, size)
            except Overloaded as error:
                if size > REQUEST_BYTES or paused > most:
                    raise
                seconds = max(error.retry_after or 0.0, LEAST_PAUSE)
            if not before.is_set():
                await before.wait()
                continue
            paused += seconds
            await asyncio.sleep(seconds)

    async def _call(self, message: M, size: int) -> bytes:
        calls, pipeline = self._frontend.calls, self._frontend.pipeline

        async def work() -> bytes:
            reply = await self._answer(message, size)
            return await pipeline.offload(calls.admission.reserved, type(reply).SerializeToString, reply)

        return await calls.answer_in_stream(self._caller, self._deadline, work)


class RerankGathering:
    """Makes one request of all messages of a RerankStream. Their bytes are counted in `held`."""

    def __init__(self, admission: Admission, stream: OpenStream, limits: Limits, held: Holding) -> None:
        """`limits`: those of a Rerank; they are checked with every message."""
        self._limits, self._held, self._refusals = limits, held, admission.refusals
        self._seconds = admission.bounds.read_seconds
        self._messages = TwoWayStream[Any](admission, stream, Replies(_write_nothing, lambda _: None), self._add)
        self._request: pb.RerankRequest | None = None
        self._timeout: asyncio.Timeout

    async def gather(self, messages: RequestStream[pb.RerankStreamRequest]) -> pb.RerankRequest:
        """Returns the request that all messages are together.

        Raises InvalidInput where messages contradict each other, LimitExceeded where they are too many or too large,
        Overloaded where others hold too many bytes, DeadlineExceeded where no message comes for long.
        """
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                await self._messages.run(messages)
        except TimeoutError:
            raise self._refusals.too_slow(self._seconds) from None
        if self._request is None:
            raise InvalidInput("the call ended without a message")
        return self._request

    async def _add(self, message: pb.RerankStreamRequest, size: int) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
        if self._request is None:
            self._request = codec.begin_rerank_request(message)
        self._held.add(size)
        if self._held.held > self._limits.message_bytes:
            raise LimitExceeded(f"the request has more than {self._limits.message_bytes} bytes")
        codec.add_stream_text(self._request, message)
        self._limits.check_count(len(self._request.texts), "documents", self._limits.documents)


async def _write_nothing(_: bytes) -> None:
    """Writes nothing: the only reply is sent by the servicer, after the last message."""
