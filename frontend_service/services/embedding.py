"""Embed: vectors of texts, with token rows pooled where the request asks for that. Knows no API."""

import asyncio
from collections.abc import Sequence
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
from frontend_service.workers.interface import ServedModel
from shared.card import ModelCard
from shared.jobs import Encode, JobResult, RaggedTokens
from shared.query_table import QueryTable
from shared.terms import RequestTerms
from shared.vectors import DataType, OutputKind

TEXT, TOKENIZED = "texts[{}]", "tokenized[{}]"
SMALLER_REPLY = "ask for fewer texts, a smaller data_type (FLOAT16, INT8) or fewer dimensions, or use EmbedStream"
SMALLER_ROWS = "ask for a smaller data_type (FLOAT16, INT8) or fewer dimensions, or send fewer tokens"
"""The advice where the token rows of one text alone are too large."""


class EmbeddingService:
    """Answers requests for vectors of texts: `EmbedRequest` -> `Answer`. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits
        self._clustering = asyncio.Lock()

    async def embed(self, request: EmbedRequest, terms: RequestTerms) -> Answer:
        """Embeds texts or token ids: their vectors, in every output that the request names."""
        answer = await self._pipeline.run(self._prepare(request), terms)
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
        """Raises LimitExceeded for too many rows to pool, and ResultTooLarge, which names a text whose token rows alone
        are too large."""
        limits, lengths, entry = self._limits, tokens.lengths, TOKENIZED if request.tokenized else TEXT
        if request.pooling:
            limits.check_pooled(lengths, job_options.token_dimensions(encode, card), entry)
        reply_bytes = partial(job_options.embed_reply_bytes, request, encode, card)
        if OutputKind.MULTI_VECTOR in encode.outputs:
            longest = max(range(len(lengths)), key=lengths.__getitem__)
            alone = reply_bytes(lengths[longest : longest + 1], dense_rows=1)
            limits.check_reply(alone, SMALLER_ROWS, entry.format(longest))
        limits.check_reply(reply_bytes(lengths, dense_rows=request.dense_rows), SMALLER_REPLY)

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
