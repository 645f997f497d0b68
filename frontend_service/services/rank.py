"""Rerank, Score and MaxSim: queries against documents. Knows no API."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from frontend_service import postprocess
from frontend_service.domain.limits import NUMBER_BYTES, TOKEN_MATCH_BYTES, largest_bytes
from frontend_service.domain.requests import MaxSimRequest, PromptChoice, RerankRequest, ScoreRequest, Truncation
from frontend_service.postprocess import MatchedToken
from frontend_service.services.pipeline import Answer, Pipeline, ServedModel, check_side, check_task
from frontend_service.services.repeats import Distinct, ScoreTable
from frontend_service.tokenizing.listwise import ListwiseTexts
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokens import NOTHING, TokenizedBatch
from shared.caller import RequestTerms
from shared.card import ModelCard
from shared.errors import DimensionMismatch, InvalidInput, UnsupportedTask
from shared.jobs import Classify, Encode, MaxSim, Score
from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, ScoringMethod, Task

DOCUMENT = "documents[{}]"
QUERY_TEXT = "query_texts[{}]"
RANK_BYTES = 64
"""Bytes that are copied in the time that one place of a ranking, with its score, takes to write."""
Ranking = list[tuple[int, float]]
"""Documents by their number in the request, with their scores, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked:
    """Documents in order.

    `explanations`: one for each document of `ranking`, or none at all. `documents`: all texts of the request, where the
    reply shows those of `ranking`.
    """

    answer: Answer
    ranking: Ranking
    explanations: Sequence[Sequence[MatchedToken]] = ()
    documents: Sequence[str] | None = None

    @property
    def size(self) -> int:
        """Approximate bytes of its reply: those of the texts, the ranking and the explanations."""
        matches = TOKEN_MATCH_BYTES * sum(map(len, self.explanations))
        return matches + RANK_BYTES * len(self.ranking) + sum(len(text) for text in self.texts if text is not None)

    @property
    def texts(self) -> Iterator[str | None]:
        """Texts of the documents of `ranking`."""
        return (None if self.documents is None else self.documents[index] for index, _ in self.ranking)


def scoring_method(request: ScoreRequest, card: ModelCard) -> ScoringMethod:
    """Resolves how a Score or Rerank compares. Raises UnsupportedTask; InvalidInput for options of other methods."""
    check_side(card, InputType.DOCUMENT, "documents")
    check_task(card, Task.RERANK)
    method = request.method or card.default_method
    if method is None or method not in card.methods:
        methods = ", ".join(method.name for method in card.methods)
        wanted = "" if method is None else f" by {method.name}"
        raise UnsupportedTask(f"the model cannot score{wanted}; it has {methods}", field="method")
    for field, is_set in (("explain", request.explain), ("pool_factor", request.pooling is not None)):
        if is_set and method is not ScoringMethod.LATE_INTERACTION:
            raise InvalidInput(f"{field} needs LATE_INTERACTION, the method is {method.name}", field=field)
    return method


def score_work(request: ScoreRequest, method: ScoringMethod, card: ModelCard) -> Score:
    """Resolves a Score or Rerank whose method compares vectors. Raises InvalidInput where means would be explained."""
    late = method is ScoringMethod.LATE_INTERACTION
    normalize = request.normalization.normalize
    mean = card.averages_late_interaction if normalize is None else normalize
    unit_by_default = card.normalizes_multi_vectors and not request.normalization.raw_token_rows if late else True
    pooling = card.pooling_of(request.pooling, normalize) if late else None
    if pooling and request.explain:
        why = f"explain needs pool_factor 1, not {pooling.pool_factor:g}: a mean of token rows is no token"
        raise InvalidInput(why, field="explain")
    return Score(
        method=method,
        layout=request.layout,
        queries=len(request.queries),
        unit_rows=unit_by_default if normalize is None else normalize,
        mean=late and mean,
        weights=request.weights,
        explain=request.explain,
        pooling=pooling,
    )


def max_sim_work(request: MaxSimRequest, card: ModelCard) -> MaxSim:
    """Resolves a MaxSim. The request's vectors are taken as they are unless `normalize` says otherwise."""
    normalize = request.normalize
    mean_by_default = request.queries is None and card.averages_late_interaction
    return MaxSim(
        queries=request.queries,
        documents=request.documents,
        layout=request.layout,
        unit_rows=bool(normalize),
        unit_queries=card.normalizes_multi_vectors if normalize is None else normalize,
        mean=mean_by_default if normalize is None else normalize,
        explain=request.explain,
    )


def check_token_rows(card: ModelCard, dimensions: int) -> None:
    """Checks that the model's token rows can be compared with rows of a request that have so many dimensions.

    Raises UnsupportedTask, DimensionMismatch.
    """
    if OutputKind.MULTI_VECTOR not in card.outputs:
        outputs = ", ".join(output.name for output in card.outputs) or "none"
        raise UnsupportedTask(f"the model has no token vectors; of outputs it has {outputs}", field="query_texts")
    if dimensions > card.multi_vector_dimensions:
        raise DimensionMismatch(
            f"documents have {dimensions} dimensions, the model's token rows {card.multi_vector_dimensions}",
            field="documents.dimensions",
        )


class RankingService:
    """Answers requests that compare queries with documents: texts by any method, or given vectors by MaxSim.

    Raises SelvageError.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    async def rerank(self, request: RerankRequest, terms: RequestTerms) -> Reranked:
        """Ranks documents, best first, with their texts and explanations where the request asks for them."""
        in_thread = self._pipeline.in_thread
        model = self._pipeline.model(request.model)
        text_bytes = 0
        if request.return_documents:
            text_bytes = await in_thread(partial(largest_bytes, request.documents, request.shown_count))
            self._limits.check_reply(text_bytes, "set top_n, or leave return_documents unset")
        answer = await self._score(model, request, terms, shown=request.shown_count, text_bytes=text_bytes)
        scores = answer.result.scores
        ranking = await in_thread(lambda: postprocess.rank(answer.ranked_by, scores, request.top_n))
        documents = request.documents if request.return_documents else None
        if not request.explain:
            return Reranked(answer=answer, ranking=ranking, documents=documents)
        places, token_text = [index for index, _ in ranking], model.tokenizer.token_text
        explain = partial(postprocess.explain, answer.result, answer.tokens, places, token_text)
        return Reranked(answer=answer, ranking=ranking, documents=documents, explanations=await in_thread(explain))

    async def score(self, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores pairs of queries and documents, in the order of the request.

        The answer's tokens are those of queries, then of documents; of a cross-encoder those of the pairs, and of a
        listwise reranker those of the blocks.
        """
        return await self._score(self._pipeline.model(request.model), request, terms)

    async def _score(
        self, model: ServedModel, request: ScoreRequest, terms: RequestTerms, *, shown: int = 0, text_bytes: int = 0
    ) -> Answer:
        """Scores by the method that request and model agree on.

        `shown`: how many documents a reply explains, beside `text_bytes` of their texts.
        """
        method = scoring_method(request, model.card)
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        self._limits.check_scores(rows, columns)
        self._limits.check_reply(NUMBER_BYTES * rows * columns, "ask for fewer scores")
        if method is ScoringMethod.LISTWISE:
            return await self._score_blocks(model, request, terms)
        if method is ScoringMethod.CROSS_ENCODER:
            return await self._score_pairs(model, request, terms)
        return await self._score_vectors(model, request, method, terms, shown, text_bytes)

    async def _score_pairs(self, model: ServedModel, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores by a cross-encoder: every pair is a sequence, and its only logit the score."""
        pipeline, limits, choice = self._pipeline, self._limits, PromptChoice(literal=request.instruction)
        prompt = model.tokenizer.prompt(choice)
        letters = limits.check_texts(request.queries, request.query_entry, limits.texts, prompt, "instruction")
        letters += limits.check_texts(request.documents, DOCUMENT, limits.documents)
        document_cut = limits.with_default(request.document_cut)
        # A request without a limit for whole sequences says for its documents whether texts may be cut at all.
        pair_cut = Truncation(truncate=document_cut.truncate, side=document_cut.side)
        began, matrix = pipeline.clock(), request.layout is Layout.MATRIX
        if matrix:
            queries = await pipeline.distinct(request.queries, letters)
            documents = await pipeline.distinct(request.documents, letters)
            table = ScoreTable(rows=queries.inverse, columns=documents.inverse)
        else:
            keys = list(zip(request.queries, request.documents, strict=True))
            queries = documents = await pipeline.distinct(keys, letters)
            table = ScoreTable.of_pairs(queries)
        limits.check_pairs(len(queries.first) * (len(documents.first) if matrix else 1))
        pairs = PairTexts(
            firsts=queries.once(request.queries),
            seconds=documents.once(request.documents),
            matrix=matrix,
            entry=DOCUMENT,
            cut=limits.with_default(request.sequence_cut) if request.sequence_cut else pair_cut,
            first_cut=limits.with_default(request.query_cut),
            second_cut=document_cut,
            first_entry=request.query_entry,
            prompt=choice,
            first_numbers=queries.first,
            numbers=documents.first,
        )
        batch = await pipeline.in_chunks(model.tokenizer.pairs(pairs))
        repeated, sent = queries.has_repeats or documents.has_repeats, batch
        if repeated:
            limits.check_tokens(table.total(batch.tokens.lengths))
            sent = await pipeline.sent(batch, table.cells)
        answer = await pipeline.run(model, Classify(), batch, terms, began=began, sent=sent)
        if repeated:
            answer = answer.with_result(await pipeline.in_thread(partial(table.take, answer.result)))
        return await pipeline.activate(answer, model.card, request.normalization.activate)

    async def _score_vectors(
        self,
        model: ServedModel,
        request: ScoreRequest,
        method: ScoringMethod,
        terms: RequestTerms,
        shown: int,
        text_bytes: int,
    ) -> Answer:
        """Scores by a model that makes vectors of queries and documents, and compares these."""
        pipeline, limits = self._pipeline, self._limits
        whole_work = score_work(request, method, model.card)
        began = pipeline.clock()
        queries, rows = await pipeline.tokenize(
            model,
            request.queries,
            request.query_entry,
            choice=PromptChoice(literal=request.instruction, input_type=InputType.QUERY),
            cut=request.query_cut,
            sequence_cut=request.sequence_cut,
            prompt_field="instruction",
        )
        documents, columns = await pipeline.tokenize(
            model,
            request.documents,
            DOCUMENT,
            choice=PromptChoice(input_type=InputType.DOCUMENT),
            cut=request.document_cut,
            sequence_cut=request.sequence_cut,
            most=limits.documents,
        )
        sides = [await pipeline.sent(queries, rows), await pipeline.sent(documents, columns)]
        sent = TokenizedBatch.joined(sides)
        if whole_work.pooling:
            limits.check_pooled(sides[1].tokens.lengths, DOCUMENT)
        if request.explain:
            limits.check_explained(request, sent.tokens.lengths[0], shown, text_bytes)
        if rows is None and columns is None:
            return await pipeline.run(model, whole_work, sent, terms, began=began)
        if request.layout is Layout.PAIRS:
            pairs = Distinct.among(zip(request.queries, request.documents, strict=True))
            table, sides = ScoreTable.of_pairs(pairs), [side.at(pairs.first) for side in sides]
        else:
            table = ScoreTable(
                rows=np.arange(len(request.queries)) if rows is None else rows,
                columns=np.arange(len(request.documents)) if columns is None else columns,
            )
            sides = [queries, documents]
        work, batch = replace(whole_work, queries=len(sides[0].tokens)), TokenizedBatch.joined(sides)
        answer = await pipeline.run(model, work, batch, terms, began=began, sent=sent, sent_work=whole_work)
        return answer.with_result(await pipeline.in_thread(partial(table.take, answer.result)))

    async def _score_blocks(self, model: ServedModel, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores by a listwise reranker: blocks to the worker, rows at their markers back, scores made here.

        Raises InvalidInput for a part of a list.
        """
        pipeline, limits, card = self._pipeline, self._limits, model.card
        assert card.listwise is not None
        if request.part_of_list:
            why = "the model reads documents beside each other, and these are a part of a list: send all in one request"
            raise InvalidInput(why, field="part_of_list")
        instruction = request.instruction or ""
        limits.check_texts([instruction], "instruction", 1)
        _, _, query_cut, _ = pipeline.text_options(
            model,
            request.queries,
            request.query_entry,
            PromptChoice(literal="", input_type=InputType.QUERY),
            request.query_cut,
            request.sequence_cut,
        )
        _, _, document_cut, _ = pipeline.text_options(
            model,
            request.documents,
            DOCUMENT,
            PromptChoice(literal="", input_type=InputType.DOCUMENT),
            request.document_cut,
            request.sequence_cut,
            limits.documents,
        )
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        limits.check_marker_rows(card, rows * columns, rows * ceil(columns / card.listwise.block_documents))
        texts = ListwiseTexts(
            queries=request.queries,
            documents=request.documents,
            matrix=request.layout is Layout.MATRIX,
            query_cut=query_cut,
            document_cut=document_cut,
            query_entry=request.query_entry,
            entry=DOCUMENT,
            instruction=instruction,
        )
        began = pipeline.clock()
        batch, blocks = await pipeline.in_chunks(model.tokenizer.blocks(texts))
        limits.check_marker_rows(card, rows * columns, len(batch.tokens))
        # Rows as the model gives them: the mean of a query's rows depends on their lengths.
        work = Encode(
            outputs=frozenset({OutputKind.DENSE}),
            dimensions=card.listwise.dimensions,
            normalize=False,
            normalize_tokens=False,
        )
        answer = await pipeline.run(model, work, batch, terms, began=began)
        result = answer.result
        assert result.dense is not None
        make_scores = partial(postprocess.listwise_scores, result.dense, blocks.documents, blocks.counts)
        return answer.with_result(replace(result, dense=None, scores=await pipeline.in_thread(make_scores)))

    async def max_sim(self, request: MaxSimRequest, terms: RequestTerms) -> Answer:
        """Scores document vectors by query vectors or by query texts. The answer's tokens are those of the texts."""
        pipeline, limits = self._pipeline, self._limits
        model = pipeline.model(request.model)
        sides = {
            field: vectors
            for field, vectors in (("queries", request.queries), ("documents", request.documents))
            if vectors is not None
        }
        for field, vectors in sides.items():
            limits.check_vectors(field, vectors)
        limits.check_scores(*request.layout.shape(request.query_count, len(request.documents.lengths)))
        began = pipeline.clock()
        if request.queries is None:
            check_token_rows(model.card, request.documents.dimensions)
            texts, places = await pipeline.tokenize(
                model,
                request.query_texts,
                QUERY_TEXT,
                choice=PromptChoice(literal=request.instruction, input_type=InputType.QUERY),
                cut=request.query_cut,
                prompt_field="instruction",
            )
            batch = await pipeline.sent(texts, places)
        else:
            check_dimensions(request.queries, request.documents)
            batch = NOTHING
        limits.check_max_sim(request, batch.tokens.lengths if request.queries is None else request.queries.lengths)
        await pipeline.in_thread(partial(check_finite, sides))
        return await pipeline.run(model, max_sim_work(request, model.card), batch, terms, began=began)


def check_dimensions(queries: MultiVectors, documents: MultiVectors) -> None:
    """Raises DimensionMismatch where the two sides cannot be compared."""
    if queries.dimensions != documents.dimensions:
        raise DimensionMismatch(
            f"queries have {queries.dimensions} dimensions, documents {documents.dimensions}",
            field="documents.dimensions",
        )


def check_finite(sides: dict[str, MultiVectors]) -> None:
    """Raises InvalidInput, naming the side, where vectors hold NaN or infinity, or products of both may overflow."""
    largest = {field: _largest(vectors) for field, vectors in sides.items()}
    for field, value in largest.items():
        if not np.isfinite(value):
            raise InvalidInput(f"{field} holds NaN or infinity", field=f"{field}.data")
    field, vectors = list(sides.items())[-1]
    if np.prod(list(largest.values())) * vectors.dimensions > np.finfo(np.float32).max:
        raise InvalidInput("products of the given vectors may overflow float32", field=f"{field}.data")


def _largest(vectors: MultiVectors) -> float:
    """The largest magnitude of a number in the vectors; NaN or infinity if one is there."""
    match vectors.data_type:
        case DataType.FLOAT32:
            values = np.frombuffer(vectors.data, dtype="<f4")
        case DataType.FLOAT16:
            values = np.frombuffer(vectors.data, dtype="<f2")
        case DataType.BFLOAT16:
            magnitudes = np.frombuffer(vectors.data, dtype="<u2") & 0x7FFF  # ordered as the numbers are, NaN last
            return float((magnitudes.max(initial=0).astype(np.uint32) << 16).view(np.float32))
        case DataType.INT8:
            values = np.frombuffer(vectors.scales, dtype="<f4") * 128
        case DataType.BINARY:
            return 1.0
    return float(max(values.max(initial=0), -values.min(initial=0)))
