"""What the frontend does: validate, tokenise, ask the worker, finish. Knows no protobuf and no gRPC."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from frontend_service import postprocess
from frontend_service.limits import Limits
from frontend_service.requests import Cut, EmbedRequest, MaxSimRequest, PromptChoice, ScoreRequest, TokenizeRequest
from frontend_service.tokenization import Tokenization, Tokenized
from shared.card import ModelCard
from shared.deadline import Deadline
from shared.errors import DimensionMismatch, InvalidInput, UnknownModel, UnsupportedDimensions, UnsupportedTask
from shared.jobs import NO_TOKENS, Encode, Job, JobResult, MaxSim, Score
from shared.offload import offload
from shared.ragged import RaggedTokens
from shared.vectors import InputType, OutputKind, ScoringMethod

T = TypeVar("T")
A = TypeVar("A")
SMALLER = "ask for fewer texts, fewer dimensions or a smaller data type, or use EmbedStream once it is there"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker."""

    card: ModelCard
    tokenization: Tokenization


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

    def __init__(self, worker: Worker, limits: Limits, threads: Executor) -> None:
        """`threads`: where texts are tokenised and results finished."""
        self._worker = worker
        self._threads = threads
        self._ids = itertools.count(random.getrandbits(62))
        self.limits = limits

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one."""
        model = self._worker.model
        if name not in ("", model.card.id):
            raise UnknownModel(f"no model is called {name!r}; there is {model.card.id}", field="model")
        return model

    async def tokenize(self, request: TokenizeRequest) -> Tokenized:
        model = self.model(request.model)
        self.limits.check_texts(request.texts, "texts[{}]", self.limits.texts)
        prompt = model.tokenization.prompt(request.prompt)
        return await self._in_thread(lambda: model.tokenization.texts(request.texts, prompt, request.cut, "texts[{}]"))

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
        self.limits.check_texts(request.texts, "texts[{}]", self.limits.texts)
        self.limits.check_count(len(request.tokenized), "tokenized", self.limits.texts)
        start = time.monotonic()

        def work() -> tuple[RaggedTokens, tuple[bool, ...], int]:
            if request.tokenized:
                tokens = model.tokenization.given(request.tokenized, request.cut)
                return tokens, (False,) * len(tokens), 0
            prompt = model.tokenization.prompt(request.prompt)
            tokenized = model.tokenization.texts(request.texts, prompt, request.cut, "texts[{}]")
            return tokenized.tokens, tokenized.truncated, tokenized.prompt_length

        tokens, truncated, prompt_length = await self._in_thread(work)
        tokenize = time.monotonic() - start
        self.limits.check_tokens(tokens.total)
        self.limits.check_reply(_reply_bytes(encode, model.card, tokens, request.return_token_ids), SMALLER)
        job = Job(
            id=next(self._ids),
            work=encode,
            tokens=tokens,
            prompt_lengths=(prompt_length,) * len(tokens) if prompt_length else (),
            remaining=deadline.remaining(),
        )
        result = await self._worker.run(job)
        return Answer(model=model.card.id, result=result, tokens=tokens, truncated=truncated, tokenize=tokenize)

    async def score(self, request: ScoreRequest, deadline: Deadline) -> Answer:
        """Scores in the order of the request; the token counts are those of queries, then documents."""
        model = self.model(request.model)
        work = _score(request, model.card)
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        self.limits.check_texts(request.queries, request.query_entry, self.limits.texts)
        self.limits.check_texts(request.documents, "documents[{}]", self.limits.documents)
        self.limits.check_scores(rows, columns)
        self.limits.check_reply(rows * columns * 4, "ask for fewer scores")
        start = time.monotonic()

        def tokenise() -> tuple[RaggedTokens, tuple[bool, ...], tuple[int, ...]]:
            queries = self._side(model, request.queries, InputType.QUERY, request)
            documents = self._side(model, request.documents, InputType.DOCUMENT, request)
            tokens = RaggedTokens.of([each.ids for side in (queries, documents) for each in side.encodings])
            prompts = (queries.prompt_length,) * len(request.queries)
            prompts += (documents.prompt_length,) * len(request.documents)
            return tokens, queries.truncated + documents.truncated, prompts if any(prompts) else ()

        tokens, truncated, prompt_lengths = await self._in_thread(tokenise)
        tokenize = time.monotonic() - start
        self.limits.check_tokens(tokens.total)
        job = Job(
            id=next(self._ids),
            work=work,
            tokens=tokens,
            prompt_lengths=prompt_lengths,
            remaining=deadline.remaining(),
        )
        result = await self._worker.run(job)
        return Answer(model=model.card.id, result=result, tokens=tokens, truncated=truncated, tokenize=tokenize)

    @staticmethod
    def _side(model: ServedModel, texts: tuple[str, ...], kind: InputType, request: ScoreRequest) -> Tokenized:
        is_query = kind is InputType.QUERY
        literal = request.instruction if is_query else None
        prompt = model.tokenization.prompt(PromptChoice(literal=literal, input_type=kind))
        cut: Cut = request.query_cut if is_query else request.document_cut
        return model.tokenization.texts(texts, prompt, cut, request.query_entry if is_query else "documents[{}]")

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
            self.limits.check_count(vectors.rows, f"{field}.data", self.limits.request_rows)
        rows, columns = request.layout.shape(len(queries.lengths), len(documents.lengths))
        self.limits.check_scores(rows, columns)
        self.limits.check_reply(rows * columns * 4, "ask for fewer scores")
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
        return await offload(self._threads, size, work, argument)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _encode(request: EmbedRequest, card: ModelCard) -> Encode:
    """What the worker is to do, settled against the model. Raises UnsupportedTask, UnsupportedDimensions."""
    fallback = OutputKind.DENSE if OutputKind.DENSE in card.outputs else card.outputs[0]
    outputs = request.outputs or frozenset({fallback})
    for index, kind in enumerate(sorted(outputs)):
        if kind not in card.outputs:
            known = ", ".join(each.name for each in card.outputs)
            raise UnsupportedTask(f"the model has no {kind.name} output; it has {known}", field=f"outputs[{index}]")
    if request.return_token_ids and OutputKind.MULTI_VECTOR not in outputs:
        raise InvalidInput("return_token_ids needs the output MULTI_VECTOR", field="return_token_ids")
    return Encode(
        outputs=outputs,
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
        known = ", ".join(each.name for each in card.methods)
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
