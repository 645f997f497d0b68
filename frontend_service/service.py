"""What the frontend does: validate, tokenise, ask the worker, finish. Knows no protobuf and no gRPC."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from frontend_service import postprocess
from frontend_service.limits import Limits
from frontend_service.requests import EmbedRequest, MaxSimRequest, PromptChoice, ScoreRequest, TokenizeRequest
from frontend_service.tokenization import Tokenization, Tokenized, TokenizedText, Watch
from shared.card import ModelCard
from shared.deadline import Deadline
from shared.errors import DimensionMismatch, InvalidInput, UnknownModel, UnsupportedDimensions, UnsupportedTask, clip
from shared.jobs import NO_TOKENS, Encode, Job, JobResult, MaxSim, Score
from shared.offload import offload
from shared.ragged import RaggedTokens
from shared.vectors import InputType, OutputKind, ScoringMethod

DOCUMENT = "documents[{}]"
SHOWN_TOKEN_BYTES = 48
"""Of a token in a Tokenize reply: id, text, offsets; long tokens are rare."""

T = TypeVar("T")
A = TypeVar("A")
SMALLER = "ask for fewer texts, fewer dimensions or a smaller data type, or use EmbedStream once it is there"


class Abandoned(Exception):
    """Nobody waits for these tokens any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker, which refuses jobs over `queued_tokens` waiting tokens."""

    card: ModelCard
    tokenization: Tokenization
    queued_tokens: int


class Worker(Protocol):
    """Whoever computes."""

    @property
    def model(self) -> ServedModel:
        """Raises WorkerUnavailable until a worker is ready."""

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, or WorkerUnavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job's result with what the frontend knows of its texts; `tokenize` in seconds."""

    model: str
    result: JobResult
    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    tokenize: float

    @property
    def size(self) -> int:
        """Bytes of vectors and scores."""
        rows = (self.result.dense, self.result.tokens)
        return len(self.result.scores) + sum(len(each.data) for each in rows if each is not None)


class Service:
    """All rpcs of the public contract, on domain types."""

    def __init__(self, worker: Worker, limits: Limits, threads: Executor, messages: Executor) -> None:
        """`threads`: where texts are tokenised. `messages`: where large messages are read and made."""
        self._worker = worker
        self._threads = threads
        self._messages = messages
        self._ids = itertools.count(random.getrandbits(62))
        self.limits = limits

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one."""
        model = self._worker.model
        if name not in ("", model.card.id):
            raise UnknownModel(f"no model is called {clip(name)}; there is {model.card.id}", field="model")
        return model

    async def tokenize(self, request: TokenizeRequest) -> list[TokenizedText]:
        model = self.model(request.model)
        prompt = model.tokenization.prompt(request.prompt)
        self.limits.check_texts(request.texts, "texts[{}]", self.limits.texts, prompt)

        def work(watch: Watch) -> list[TokenizedText]:
            def watch_reply(tokens: int) -> None:
                watch(tokens)
                self.limits.check_reply(tokens * SHOWN_TOKEN_BYTES, "ask for fewer texts")

            return list(model.tokenization.each(request.texts, prompt, request.cut, "texts[{}]", watch_reply))

        return await self._tokenising(work)

    async def detokenize(self, name: str, tokenized: tuple[tuple[int, ...], ...], skip_special: bool) -> list[str]:
        model = self.model(name)
        self.limits.check_count(len(tokenized), "tokenized", self.limits.texts)
        if not tokenized:
            raise InvalidInput("tokenized is empty", field="tokenized")

        def work() -> list[str]:
            for index, ids in enumerate(tokenized):
                if ids and not (min(ids) >= 0 and max(ids) < model.card.vocabulary_size):
                    raise InvalidInput(
                        f"tokenized[{index}] has an id outside 0 to {model.card.vocabulary_size - 1}",
                        field=f"tokenized[{index}]",
                    )
            return model.tokenization.detokenize(tokenized, skip_special)

        return await self._in_thread(work)

    async def embed(self, request: EmbedRequest, deadline: Deadline) -> Answer:
        model = self.model(request.model)
        encode = _encode(request, model.card)
        prompt = model.tokenization.prompt(request.prompt)
        self.limits.check_texts(request.texts, "texts[{}]", self.limits.texts, prompt)
        self.limits.check_count(len(request.tokenized), "tokenized", self.limits.texts)
        start = time.monotonic()

        def work(watch: Watch) -> Tokenized:
            if request.tokenized:
                return model.tokenization.given(request.tokenized, request.cut)
            return model.tokenization.texts(request.texts, prompt, request.cut, "texts[{}]", watch)

        tokenized = await self._tokenising(work)
        tokenize = time.monotonic() - start
        payload = _reply_bytes(encode, model.card, tokenized.tokens, request.return_token_ids)
        self.limits.check_reply(payload, SMALLER)
        return await self._answer(model, encode, tokenized, tokenize, deadline)

    async def score(self, request: ScoreRequest, deadline: Deadline) -> Answer:
        """Scores in the order of the request; the token counts are those of queries, then documents."""
        model = self.model(request.model)
        score = _score(request, model.card)
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        self.limits.check_scores(rows, columns)
        self.limits.check_reply(rows * columns * 4, "ask for fewer scores")
        choice = PromptChoice(literal=request.instruction, input_type=InputType.QUERY)
        before_query = model.tokenization.prompt(choice)
        before_document = model.tokenization.prompt(PromptChoice(input_type=InputType.DOCUMENT))
        entry, limits = request.query_entry, self.limits
        limits.check_texts(request.queries, entry, limits.texts, before_query, "instruction")
        limits.check_texts(request.documents, DOCUMENT, limits.documents, before_document)
        start = time.monotonic()

        def work(watch: Watch) -> Tokenized:
            read = model.tokenization.texts
            queries = read(request.queries, before_query, request.query_cut, entry, watch)
            return queries + read(request.documents, before_document, request.document_cut, DOCUMENT, watch)

        tokenized = await self._tokenising(work)
        return await self._answer(model, score, tokenized, time.monotonic() - start, deadline)

    async def _answer(
        self, model: ServedModel, work: Encode | Score, tokenized: Tokenized, tokenize: float, deadline: Deadline
    ) -> Answer:
        self.limits.check_tokens(tokenized.tokens.total)
        job = Job(
            id=next(self._ids),
            work=work,
            tokens=tokenized.tokens,
            prompt_lengths=tokenized.prompt_lengths if any(tokenized.prompt_lengths) else (),
            remaining=deadline.remaining(),
        )
        return Answer(
            model=model.card.id,
            result=await self._worker.run(job),
            tokens=tokenized.tokens,
            truncated=tokenized.truncated,
            tokenize=tokenize,
        )

    async def rerank(
        self, request: ScoreRequest, top_n: int | None, deadline: Deadline
    ) -> tuple[Answer, list[tuple[int, float]]]:
        """One query; (index, score), best first."""
        if top_n is not None and top_n < 1:
            raise InvalidInput(f"top_n is {top_n}, must be at least 1", field="top_n")
        answer = await self.score(request, deadline)
        return answer, await self._in_thread(lambda: postprocess.rank(answer.result.scores, top_n))

    async def max_sim(self, request: MaxSimRequest, deadline: Deadline) -> JobResult:
        queries, documents = request.queries, request.documents
        if queries.dimensions != documents.dimensions:
            raise DimensionMismatch(
                f"queries have {queries.dimensions} dimensions, documents {documents.dimensions}",
                field="documents.dimensions",
            )
        for field, vectors in (("queries", queries), ("documents", documents)):
            self.limits.check_count(len(vectors.lengths), f"{field}.lengths", self.limits.documents)
            self.limits.check_vectors(field, vectors.rows, vectors.dimensions)
        rows, columns = request.layout.shape(len(queries.lengths), len(documents.lengths))
        self.limits.check_scores(rows, columns)
        self.limits.check_reply(rows * columns * 4, "ask for fewer scores")
        self.limits.check_similarities(request.similarities)
        for field, vectors in (("queries", queries), ("documents", documents)):
            await self._in_thread(partial(postprocess.check_finite, vectors, field))
        work = MaxSim(
            queries=queries,
            documents=documents,
            layout=request.layout,
            unit_rows=request.normalize,
            mean=request.normalize,
        )
        job = Job(id=next(self._ids), work=work, tokens=NO_TOKENS, remaining=deadline.remaining())
        return await self._worker.run(job)

    async def offload(self, size: int, work: Callable[[A], T], argument: A) -> T:
        """Runs `work(argument)`, in a thread where it handles many bytes."""
        return await offload(self._messages, size, work, argument)

    async def _tokenising(self, work: Callable[[Watch], T]) -> T:
        """Runs `work` in a thread, and stops it after its next slice when nobody waits any more."""
        abandoned = threading.Event()

        def watch(tokens: int) -> None:
            self.limits.check_tokens(tokens)
            if abandoned.is_set():
                raise Abandoned

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, watch)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _encode(request: EmbedRequest, card: ModelCard) -> Encode:
    """What the worker is to do, settled against the model. Raises UnsupportedTask, UnsupportedDimensions."""
    fallback = OutputKind.DENSE if OutputKind.DENSE in card.outputs else card.outputs[0]
    outputs = request.outputs or (fallback,)
    for index, kind in enumerate(outputs):
        if kind not in card.outputs:
            known = ", ".join(each.name for each in card.outputs)
            raise UnsupportedTask(f"the model has no {kind.name} output; it has {known}", field=f"outputs[{index}]")
    if request.return_token_ids and OutputKind.MULTI_VECTOR not in outputs:
        raise InvalidInput("return_token_ids needs the output MULTI_VECTOR", field="return_token_ids")
    return Encode(
        outputs=frozenset(outputs),
        dimensions=_dimensions(request.dimensions, card),
        normalize=card.normalizes if request.normalize is None else request.normalize,
        normalize_tokens=True if request.normalize is None else request.normalize,
        data_type=request.data_type,
    )


def _dimensions(asked: int | None, card: ModelCard) -> int:
    if asked is None:
        return 0
    allowed = {*card.allowed_dimensions, card.dimensions} if card.allowed_dimensions else None
    if (allowed and asked not in allowed) or not 1 <= asked <= card.dimensions:
        choice = ", ".join(map(str, sorted(allowed))) if allowed else f"1 to {card.dimensions}"
        raise UnsupportedDimensions(f"dimensions is {asked}, the model can give {choice}", field="dimensions")
    return asked


def _score(request: ScoreRequest, card: ModelCard) -> Score:
    method = request.method or card.default_method
    if method not in card.methods:
        known = ", ".join(each.name for each in card.methods) or "none"
        raise UnsupportedTask(f"the model cannot score by {method.name}; it has {known}", field="method")
    late = method is ScoringMethod.LATE_INTERACTION
    return Score(
        method=method,
        layout=request.layout,
        queries=len(request.queries),
        unit_rows=True if request.normalize is None else request.normalize,
        mean=late and bool(request.normalize),
    )


def _reply_bytes(encode: Encode, card: ModelCard, tokens: RaggedTokens, token_ids: bool) -> int:
    """Bytes of the vectors that an Embed would return."""
    width = encode.dimensions or card.dimensions
    row = encode.data_type.row_bytes(width) + encode.data_type.scale_bytes
    rows = len(tokens) * (OutputKind.DENSE in encode.outputs)
    rows += tokens.total * (OutputKind.MULTI_VECTOR in encode.outputs)
    return rows * row + 5 * tokens.total * token_ids + 8 * len(tokens)
