"""Embed: vectors of texts. Knows no API."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import inf

import numpy as np

from frontend_service.domain.limits import FEWER_WEIGHTS, TEXT_LETTERS, expected_reply
from frontend_service.domain.requests import EmbedRequest, SpanPooling
from frontend_service.services import repeats
from frontend_service.services.pipeline import INLINE_LETTERS, Answer, Pipeline, ServedModel, check_task
from frontend_service.tokenizing.spans import Document
from frontend_service.tokenizing.tokens import TokenizedBatch
from shared.caller import RequestTerms
from shared.card import ModelCard
from shared.errors import InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Encode, JobResult
from shared.query_table import QueryTable
from shared.vectors import DataType, InputType, OutputKind, Task

TEXT, TOKENIZED = "texts[{}]", "tokenized[{}]"
INLINE_TOKENS = 8192
"""Most tokens that are looked up in a table on the event loop: a millisecond or two."""
ROWS, TOKEN_ROWS = (OutputKind.DENSE, OutputKind.MULTI_VECTOR), (OutputKind.MULTI_VECTOR,)
WEIGHTS = (OutputKind.SPARSE,)


def encode(request: EmbedRequest, card: ModelCard) -> Encode:
    """The work of an Embed, checked against the model's card.

    Raises UnsupportedTask, UnsupportedDimensions, and InvalidInput for options without effect.
    """
    check_task(card, Task.EMBED)
    fallback = OutputKind.DENSE if OutputKind.DENSE in card.outputs else card.outputs[0]
    outputs = request.outputs or (fallback,)
    for index, kind in enumerate(outputs):
        if kind not in card.outputs:
            served = ", ".join(output.name for output in card.outputs)
            raise UnsupportedTask(f"the model has no {kind.name} output; it has {served}", field=f"outputs[{index}]")
    if request.return_token_ids:
        _check_output("return_token_ids", TOKEN_ROWS, outputs)
    if request.pooling is not None:
        _check_output("pool_factor", TOKEN_ROWS, outputs)
    if request.sparse_top_k is not None:
        _check_output("sparse_top_k", WEIGHTS, outputs)
    if request.dimensions is not None:
        _check_output("dimensions", ROWS, outputs)
    if request.normalize is not None:
        _check_output("normalize", ROWS, outputs)
    if request.data_type is not DataType.FLOAT32:
        _check_output("data_type", ROWS, outputs)
    if request.span_pooling:
        _check_span_pooling(request.span_pooling.field, outputs, card)
    for kind in outputs:
        _check_dimensions(request.dimensions, kind, card)
    normalize, pooling = request.normalize, None
    if OutputKind.MULTI_VECTOR in outputs and request.prompt.input_type is not InputType.QUERY:
        pooling = card.pooling_of(request.pooling, normalize)
    if pooling and request.return_token_ids:
        why = f"return_token_ids needs pool_factor 1, not {pooling.pool_factor:g}: a mean of token rows has no id"
        raise InvalidInput(why, field="return_token_ids")
    return Encode(
        outputs=frozenset(outputs),
        dimensions=request.dimensions or 0,
        normalize=card.normalizes if normalize is None else normalize,
        normalize_tokens=pooling.normalize
        if pooling
        else card.normalizes_multi_vectors
        if normalize is None
        else normalize,
        data_type=request.data_type,
        sparse_top_k=request.sparse_top_k or 0,
        token_ids=request.return_token_ids,
        input_type=request.prompt.input_type,
        pooling=pooling,
    )


def _check_output(field: str, needed: Sequence[OutputKind], outputs: Sequence[OutputKind]) -> None:
    """Raises InvalidInput for an option that has no effect on these outputs."""
    if not set(needed) & set(outputs):
        names = " or ".join(output.name for output in needed)
        raise InvalidInput(f"{field} needs the output {names}", field=field)


def _check_span_pooling(field: str, outputs: Sequence[OutputKind], card: ModelCard) -> None:
    """Raises UnsupportedTask where the model pools no spans; InvalidInput for other outputs."""
    if set(outputs) != {OutputKind.DENSE}:
        names = ", ".join(output.name for output in outputs)
        raise InvalidInput(f"{field} needs the output DENSE alone, not {names}", field=field)
    certain = [mode for mode in card.pooling.split("+") if mode in ("cls", "lasttoken")]
    if certain:
        why = f"the model's pooling is {' and '.join(certain)}, which takes one certain token of a whole text"
        raise UnsupportedTask(f"{field} needs a pooling of any tokens; {why}", field=field)
    if card.message_templates:
        raise UnsupportedTask(
            f"{field}: the model reads texts as chat messages, which have one vector each", field=field
        )
    if not card.pools_spans:
        raise UnsupportedTask(f"{field} needs a pooling of any tokens, which this model has not", field=field)


def _check_dimensions(dimensions: int | None, kind: OutputKind, card: ModelCard) -> None:
    if dimensions is None or kind is OutputKind.SPARSE:
        return
    dense = kind is OutputKind.DENSE
    width = card.dimensions if dense else card.multi_vector_dimensions
    allowed = {*card.allowed_dimensions, width} if dense and card.allowed_dimensions else None
    if (allowed and dimensions not in allowed) or not 1 <= dimensions <= width:
        choice = ", ".join(map(str, sorted(allowed))) if allowed else f"1 to {width}"
        raise UnsupportedDimensions(
            f"dimensions is {dimensions}, {kind.name} of the model can have {choice}", field="dimensions"
        )


class EmbeddingService:
    """Answers requests for vectors of texts: `EmbedRequest` -> `Answer`. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    async def embed(self, request: EmbedRequest, terms: RequestTerms) -> Answer:
        """Embeds texts or token ids: their vectors, in every output that the request names."""
        pipeline, limits = self._pipeline, self._limits
        model = pipeline.model(request.model, request.prompt.task)
        if model.card.task_models:  # the task has chosen the model, and names no prompt
            request = replace(request, prompt=replace(request.prompt, task=None))
        work = encode(request, model.card)
        if request.span_pooling:
            return await self._embed_spans(model, work, request, request.span_pooling, terms)
        began = pipeline.clock()
        if request.tokenized:
            batch, places, entry = await self._check_ids(model, request), None, TOKENIZED
        else:
            batch, places = await pipeline.tokenize(model, request.texts, TEXT, choice=request.prompt, cut=request.cut)
            entry = TEXT
        sent = batch if places is None else await pipeline.sent(batch, places)
        limits.check_embedding(request, work, model.card, sent.tokens.lengths, entry)
        if table := model.table_of(request.prompt.input_type):
            answer = await self._look_up(model, table, work, batch, sent, began)
        else:
            answer = await pipeline.run(model, work, batch, terms, began=began, sent=sent)
        if places is not None:
            answer = await pipeline.as_sent(answer, places)
        if answer.result.sparse is not None:  # only now is it known how many weights there are
            limits.check_reply(answer.size, FEWER_WEIGHTS)
        return answer

    async def _embed_spans(
        self, model: ServedModel, work: Encode, request: EmbedRequest, pooling: SpanPooling, terms: RequestTerms
    ) -> Answer:
        """Pools spans of documents: of the texts, or of one document that the texts are the chunks of."""
        pipeline, limits = self._pipeline, self._limits
        limits.check_count(len(request.texts), "texts", limits.texts)
        limits.check_count(request.dense_rows, "spans", limits.spans)
        began, overlap = pipeline.clock(), pooling.window_overlap
        documents = documents_of(request.texts, pooling)
        texts, entry = [document.text for document in documents], "texts" if pooling.spans is None else TEXT
        tokenizer, prompt, cut, letters = pipeline.text_options(model, texts, entry, request.prompt, request.cut)
        distinct = None
        if overlap is None and pooling.spans:
            keys = list(zip(request.texts, pooling.spans, strict=True))
            distinct = await pipeline.distinct(keys, letters)
            documents = distinct.once(documents)
        chunks = tokenizer.documents.tokenize(documents, prompt, cut, request.prompt.input_type, overlap)
        # Finding the tokens of a span costs about as much as a short text. Windows may have a text many times over.
        span_letters = TEXT_LETTERS * request.dense_rows if overlap is None else inf
        batch = await pipeline.in_chunks(chunks, letters + span_letters)
        sent = await pipeline.sent(batch, distinct.inverse if distinct and distinct.has_repeats else None)
        limits.check_embedding(request, work, model.card, sent.tokens.lengths, TEXT)
        answer = await pipeline.run(model, work, batch, terms, began=began, sent=sent)
        assert batch.ranges is not None
        rows = np.array(batch.range_of_span, dtype=np.int64)
        if distinct and distinct.has_repeats:
            rows = repeats.ragged_rows(np.array(batch.ranges.counts, dtype=np.int64), distinct.inverse)
        if not len(rows):
            return answer
        take = partial(repeats.take_spans, answer.result, rows, len(batch.ranges))
        return replace(answer, result=await pipeline.in_thread(take))

    async def _check_ids(self, model: ServedModel, request: EmbedRequest) -> TokenizedBatch:
        """Token ids as a job needs them, checked in a thread where there are many."""
        tokenized, input_type = request.tokenized, request.prompt.input_type
        tokenizer, _, cut, _ = self._pipeline.text_options(model, (), TEXT, request.prompt, request.cut)
        self._limits.check_count(len(tokenized), "tokenized", self._limits.texts)
        # Checking an id costs as much as tokenising a letter.
        if sum(len(ids) + TEXT_LETTERS for ids in tokenized) <= INLINE_LETTERS:
            return tokenizer.token_ids(tokenized, cut, input_type)
        self._limits.check_tokens(sum(map(len, tokenized)))
        return await self._pipeline.in_thread(partial(tokenizer.token_ids, tokenized, cut, input_type))

    async def _look_up(
        self,
        model: ServedModel,
        table: QueryTable,
        work: Encode,
        batch: TokenizedBatch,
        sent: TokenizedBatch,
        began: float,
    ) -> Answer:
        """Sparse vectors of queries, without a worker."""
        pipeline = self._pipeline
        pipeline.reserve(sent, expected_reply(work, sent.tokens, model.card))
        left, look_up = pipeline.clock(), partial(table.look_up, batch.tokens, work.sparse_top_k)
        sparse = look_up() if batch.tokens.total <= INLINE_TOKENS else await pipeline.in_thread(look_up)
        result = JobResult(sparse=sparse, compute=pipeline.clock() - left)
        return pipeline.answer(model, result, sent, began=began, left=left)


def documents_of(texts: Sequence[str], pooling: SpanPooling) -> list[Document]:
    """The documents of a request: the texts with their spans, or all texts as one document of which each is a chunk."""
    if pooling.spans is None:
        spans = list(pairwise((0, *accumulate(map(len, texts)))))
        return [Document(text="".join(texts), spans=spans, entry="texts", span_entry=TEXT, chunks=True)]
    return [
        Document(text=text, spans=spans, entry=TEXT.format(index), span_entry=f"spans[{index}]")
        for index, (text, spans) in enumerate(zip(texts, pooling.spans, strict=True))
    ]
