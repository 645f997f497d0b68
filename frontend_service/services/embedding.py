"""Embed: vectors of texts, with token rows pooled where the request asks for that. Knows no API."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from frontend_service.domain.answer import Answer
from frontend_service.domain.limits import FEWER_WEIGHTS, TEXT_LETTERS
from frontend_service.domain.requests import EmbedRequest, SpanPooling, TokenPooling
from frontend_service.postprocess import packing, token_pooling
from frontend_service.services import job_options
from frontend_service.services.pipeline import Pipeline, PreparedRequest
from frontend_service.services.prepared_texts import prepare_texts
from frontend_service.tokenizing.documents import Document
from frontend_service.tokenizing.query_table import QueryTable
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.row_parts import RowPart, RowParts
from shared.card import ModelCard
from shared.jobs import Encode, JobResult, Rows
from shared.ragged import RaggedTokens
from shared.terms import RequestTerms
from shared.vectors import DataType, OutputKind

TEXT, TOKENIZED = "texts[{}]", "tokenized[{}]"
SendRows = Callable[[JobResult, str], Awaitable[None]]
"""Sends token rows of a text, in a result that has nothing else, by the model of this name; returns when it may take
more."""
ID_BYTES = 4
"""Bytes of a token id, as a worker sends it."""
SMALLER_REPLY = "ask for fewer texts, fewer dimensions or a smaller data type, or use EmbedStream with rows_in_parts"


class EmbeddingService:
    """Answers requests for vectors of texts: `EmbedRequest` -> `Answer`. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits
        self._clustering = asyncio.Lock()

    async def embed(self, request: EmbedRequest, terms: RequestTerms) -> Answer:
        """Embeds texts or token ids: their vectors, in every output that the request names."""
        return await self._embed(self._prepare(request), request, terms)

    async def embed_in_parts(self, request: EmbedRequest, terms: RequestTerms, send: SendRows) -> Answer:
        """Embeds texts or token ids. Token rows of a single text, where nothing else is wanted, go to `send` as they
        are computed. The answer then has the last of them. They may be any number, and an error may follow some.
        """
        prepared = self._prepare(request)
        encode = prepared.work
        assert isinstance(encode, Encode)
        texts = len(request.texts) + len(request.tokenized)
        if texts > 1 or request.pooling or encode.outputs != {OutputKind.MULTI_VECTOR}:
            return await self._embed(prepared, request, terms)
        width, kind = job_options.token_dimensions(encode, prepared.model.card), encode.data_type
        parts = RowParts(kind.row_bytes(width), kind.scale_bytes, ID_BYTES * encode.token_ids)
        prepared = replace(prepared, work=replace(encode, in_parts=True), check_tokens=None, parts=parts)
        run = asyncio.create_task(self._pipeline.run(prepared, terms))
        run.add_done_callback(lambda _: parts.end())
        try:
            while (part := await parts.take()) is not None:
                await send(_row_result(part, width), prepared.model.card.id)
            answer = await run
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        rest = _row_result(parts.take_rest(), width)
        return replace(answer, result=replace(rest, queue=answer.result.queue, compute=answer.result.compute))

    async def _embed(self, prepared: PreparedRequest, request: EmbedRequest, terms: RequestTerms) -> Answer:
        answer = await self._pipeline.run(prepared, terms)
        if request.pooling:
            answer = replace(answer, result=await self._pool_rows(answer.result, request, request.pooling))
        # Only now is it known how many weights the sparse vectors have.
        self._limits.check_reply(answer.size, FEWER_WEIGHTS)
        return answer

    def _prepare(self, request: EmbedRequest) -> PreparedRequest:
        limits, model = self._limits, self._pipeline.workers.model(request.model)
        encode = job_options.resolve_encode(request, model.card)
        if request.span_pooling:
            return self._prepare_spans(request, request.span_pooling, model, encode)
        input_type = request.prompt.input_type
        # `request.texts` is empty where the request brings token ids.
        texts = prepare_texts(
            model, limits, request.texts, TEXT, choice=request.prompt, cut=request.cut, input_type=input_type
        )
        limits.check_count(len(request.tokenized), "tokenized", limits.texts)
        # Checking an id costs as much as tokenising a letter.
        letters = texts.letters + sum(len(ids) + TEXT_LETTERS for ids in request.tokenized)
        if request.tokenized:
            slices = texts.tokenizer.token_ids(request.tokenized, texts.cut, input_type)
        else:
            slices = texts.tokenize()
        return PreparedRequest(
            model=model,
            work=encode,
            slices=slices,
            letters=letters,
            check_tokens=partial(self._check_tokens, request, encode, model.card),
            look_up=partial(_look_up, table, encode.sparse_top_k) if (table := model.table_of(input_type)) else None,
        )

    def _prepare_spans(
        self, request: EmbedRequest, pooling: SpanPooling, model: ServedModel, encode: Encode
    ) -> PreparedRequest:
        """Prepares documents whose spans are pooled: the texts, or one document that the texts are the chunks of."""
        limits = self._limits
        limits.check_count(len(request.texts), "texts", limits.texts)
        limits.check_count(request.dense_rows, "spans", limits.spans)
        documents = documents_of(request.texts, pooling)
        texts = prepare_texts(
            model,
            limits,
            [document.text for document in documents],
            "texts" if pooling.spans is None else TEXT,
            choice=request.prompt,
            cut=request.cut,
            input_type=request.prompt.input_type,
            whole=True,
        )
        return PreparedRequest(
            model=model,
            work=encode,
            slices=texts.tokenize_documents(documents, pooling.window_overlap),
            # Finding the tokens of a span costs about as much as a short text. Windows may have a text many times over.
            letters=texts.letters + TEXT_LETTERS * request.dense_rows if pooling.window_overlap is None else None,
            check_tokens=partial(self._check_tokens, request, encode, model.card),
        )

    def _check_tokens(self, request: EmbedRequest, encode: Encode, card: ModelCard, tokens: RaggedTokens) -> None:
        """Raises LimitExceeded for too many rows to pool, and ResultTooLarge."""
        if request.pooling:
            entry = TOKENIZED if request.tokenized else TEXT
            self._limits.check_pooled(tokens.lengths, job_options.token_dimensions(encode, card), entry)
        self._limits.check_reply(job_options.embed_reply_bytes(request, encode, card, tokens), SMALLER_REPLY)

    async def _pool_rows(self, result: JobResult, request: EmbedRequest, pooling: TokenPooling) -> JobResult:
        """Pools the FLOAT32 token rows of a worker's result, and packs all rows in the data type of the request.

        Documents are clustered one at a time, those of several requests in turn: clustering keeps Python's lock, so
        two at once would gain nothing, take twice the memory, and leave fewer threads to tokenise. A cancelled call
        ends with its document.
        """
        assert result.tokens is not None
        options = (pooling.factor, pooling.protected, request.normalize is not False)
        documents = np.split(packing.unpack_float32(result.tokens), np.cumsum(result.row_lengths)[:-1])
        pooled = []
        for rows in documents:
            async with self._clustering:
                pooled.append(await self._pipeline.in_thread(partial(token_pooling.pool, rows, *options)))
        return await self._pipeline.in_thread(partial(_with_pooled_rows, result, pooled, request.data_type))


def documents_of(texts: Sequence[str], pooling: SpanPooling) -> list[Document]:
    """The documents of a request: the texts with their spans, or all texts as one document of which each is a chunk."""
    if pooling.spans is None:
        spans = list(pairwise((0, *accumulate(map(len, texts)))))
        return [Document(text="".join(texts), spans=spans, entry="texts", span_entry=TEXT, chunks=True)]
    return [
        Document(text=text, spans=spans, entry=TEXT.format(index), span_entry=f"spans[{index}]")
        for index, (text, spans) in enumerate(zip(texts, pooling.spans, strict=True))
    ]


def _with_pooled_rows(result: JobResult, documents: list[token_pooling.Floats], data_type: DataType) -> JobResult:
    """The result with these token rows instead of its former ones, and all rows in one data type."""
    dense = result.dense
    return replace(
        result,
        dense=dense and packing.pack(packing.unpack_float32(dense), data_type),
        tokens=packing.pack(np.concatenate(documents), data_type),
        row_lengths=tuple(map(len, documents)),
    )


def _look_up(table: QueryTable, top_k: int, tokens: RaggedTokens) -> JobResult:
    """Sparse vectors of queries, without a worker."""
    return JobResult(sparse=table.look_up(tokens, top_k))


def _row_result(part: RowPart, width: int) -> JobResult:
    """Token rows of a part of a text, of `width` dimensions, as a result."""
    rows = Rows(dimensions=width, data=part.data, scales=part.scales)
    return JobResult(tokens=rows, row_lengths=(part.count,), token_ids=part.ids)
