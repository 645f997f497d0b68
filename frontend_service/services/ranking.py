"""Rerank, Score and MaxSim: queries against documents. Knows no door."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from frontend_service.domain.answer import Answer, FinishedAnswer
from frontend_service.domain.ranking_requests import MaxSimRequest, RerankRequest, ScoreRequest
from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.postprocess import explanation
from frontend_service.postprocess import ranking as postprocess
from frontend_service.postprocess.explanation import MatchedToken
from frontend_service.services import job_options as settling
from frontend_service.services.pipeline import Pipeline
from frontend_service.tokenizing.batch import NOTHING, TokenizedBatch
from frontend_service.tokenizing.fair_threads import Slices
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.workers.interface import ServedModel
from shared.errors import DimensionMismatch
from shared.terms import RequestTerms
from shared.vectors import InputType, Layout, ScoringMethod

DOCUMENT = "documents[{}]"
QUERY_TEXT = "query_texts[{}]"
MATCH_BYTES = 9
"""A winner and its similarity, at most."""
TOKEN_MATCH_BYTES = 32
"""Bytes of a winner with both tokens as texts; most have a few letters."""
RANK_BYTES = 64
"""A place in the ranking with its score takes as long to write as so many bytes to copy."""
Ranked = list[tuple[int, float]]
"""Documents by number with their scores, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked(FinishedAnswer):
    """Documents in order.

    `explanations` are one a document of `ranking`, or none at all; `documents` all texts of the request, where the
    reply is to show those of `ranking`.
    """

    ranking: Ranked
    explanations: Sequence[Sequence[MatchedToken]] = ()
    documents: Sequence[str] | None = None

    @property
    def size(self) -> int:
        """Bytes of texts, of places and of what explains, about."""
        matches = TOKEN_MATCH_BYTES * sum(map(len, self.explanations))
        return matches + RANK_BYTES * len(self.ranking) + sum(len(text) for text in self.texts if text is not None)

    @property
    def texts(self) -> Iterator[str | None]:
        """Texts of the documents of `ranking`."""
        return (None if self.documents is None else self.documents[index] for index, _ in self.ranking)


class RankingService:
    """The rpcs of selvage.v1.RankingService, on domain types."""

    def __init__(self, service: Pipeline) -> None:
        self._service = service
        self._limits = service.limits

    async def rerank(self, request: RerankRequest, terms: RequestTerms) -> Reranked:
        """Best first, with what the request wants to see of each."""
        model, service = self._service.model(request.model), self._service
        texts = 0
        if request.return_documents:
            texts = await service.in_thread(lambda: postprocess.largest_bytes(request.documents, request.shown))
            self._limits.check_reply(texts, "set top_n, or leave return_documents unset")
        answer = await self._score(model, request, terms, request.shown, texts)
        ranking = await service.in_thread(lambda: postprocess.rank(answer.result.scores, request.top_n))
        documents = request.documents if request.return_documents else None
        if not request.explain:
            return Reranked(answer=answer, ranking=ranking, documents=documents)
        places, written = [index for index, _ in ranking], model.tokenization.written
        work = partial(explanation.explain, answer.result, answer.tokens, places, written)
        explanations = await service.in_thread(work)
        return Reranked(answer=answer, ranking=ranking, documents=documents, explanations=explanations)

    async def score(self, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores in the order of the request; the token counts are those of queries, then documents."""
        return await self._score(self._service.model(request.model), request, terms)

    async def _score(
        self, model: ServedModel, request: ScoreRequest, terms: RequestTerms, shown: int = 0, texts: int = 0
    ) -> Answer:
        """`shown`: how many documents will be explained; `texts`: bytes of those that the reply holds beside that."""
        service, request = self._service, self._settled(request)
        method = settling.method_of(request, model.card)
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        self._limits.check_scores(rows, columns)
        self._limits.check_reply(rows * columns * 4, "ask for fewer scores")
        if method is ScoringMethod.CROSS_ENCODER:
            return await self._score_pairs(model, request, terms)
        choice = PromptChoice(literal=request.instruction, input_type=InputType.QUERY)
        before_query = model.tokenization.prompt(choice)
        before_document = model.tokenization.prompt(PromptChoice(input_type=InputType.DOCUMENT))
        entry = request.query_entry
        letters = self._check_sides(request, before_query, before_document)
        start = service.clock()

        def slices() -> Slices[TokenizedBatch]:
            read, sides = model.tokenization.texts, (InputType.QUERY, InputType.DOCUMENT)
            query_cut, document_cut = (
                cut.within(request.sequence_cut) for cut in (request.query_cut, request.document_cut)
            )
            queries = yield from read(request.queries, before_query, query_cut, entry, sides[0])
            read_documents = read(request.documents, before_document, document_cut, DOCUMENT, sides[1])
            return queries + (yield from read_documents)

        tokenized = await service.tokenising(slices(), letters)
        if request.explain:
            query = tokenized.tokens.lengths[0]
            self._limits.check_matches(columns * query)
            self._limits.check_reply(texts + shown * query * TOKEN_MATCH_BYTES, "set top_n, or leave explain unset")
        score = settling.score_of(request, method, model.card)
        return await service.answer(model, score, tokenized, service.clock() - start, terms)

    def _settled(self, request: ScoreRequest) -> ScoreRequest:
        """A request whose cuts all say whether to cut."""
        settled, whole = self._limits.settled, request.sequence_cut
        return replace(
            request,
            query_cut=settled(request.query_cut),
            document_cut=settled(request.document_cut),
            sequence_cut=whole and settled(whole),
        )

    async def _score_pairs(self, model: ServedModel, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores of a cross-encoder: every pair is a sequence, and its only logit the score."""
        texts = PairTexts(
            firsts=request.queries,
            seconds=request.documents,
            matrix=request.layout is Layout.MATRIX,
            entry=DOCUMENT,
            cut=request.sequence_cut
            or Truncation(truncate=request.document_cut.truncate, side=request.document_cut.side),
            first_cut=request.query_cut,
            second_cut=request.document_cut,
            first_entry=request.query_entry,
            prompt=PromptChoice(literal=request.instruction),
        )
        self._check_sides(request, model.tokenization.prompt(texts.prompt), "")
        normalize = request.normalize if request.activated is None else request.activated
        return await self._service.classify_pairs(model, texts, normalize, terms)

    def _check_sides(self, request: ScoreRequest, before_query: str, before_document: str) -> int:
        """Checks both sides. Returns their letters together."""
        limits = self._limits
        queries = limits.check_texts(request.queries, request.query_entry, limits.texts, before_query, "instruction")
        return queries + limits.check_texts(request.documents, DOCUMENT, limits.documents, before_document)

    async def max_sim(self, request: MaxSimRequest, terms: RequestTerms) -> Answer:
        """Scores of given documents, by given queries or by texts; the token counts are those of the texts."""
        service, limits = self._service, self._limits
        model = service.model(request.model)
        for field, vectors in (("queries", request.queries), ("documents", request.documents)):
            if vectors is not None:
                limits.check_count(len(vectors.lengths), f"{field}.lengths", limits.documents)
                limits.check_vectors(field, vectors.rows, vectors.dimensions)
        rows, columns = request.layout.shape(request.query_count, len(request.documents.lengths))
        limits.check_scores(rows, columns)
        start, tokenized = service.clock(), NOTHING
        if request.queries is None:
            settling.check_token_rows(model.card, request.documents.dimensions)
            tokenized = await self._query_texts(model, request)
        elif request.queries.dimensions != request.documents.dimensions:
            raise DimensionMismatch(
                f"queries have {request.queries.dimensions} dimensions, documents {request.documents.dimensions}",
                field="documents.dimensions",
            )
        tokenize = service.clock() - start
        query_rows = tokenized.tokens.lengths if request.queries is None else request.queries.lengths
        similarities = request.similarities(query_rows)
        limits.check_similarities(similarities)
        matches = request.matches(query_rows) if request.explain else 0
        limits.check_matches(matches)
        remedy = "ask for fewer scores" + (", or leave explain unset" if request.explain else "")
        limits.check_reply(rows * columns * 4 + matches * MATCH_BYTES, remedy)
        given = {"queries": request.queries, "documents": request.documents}
        sides = {field: vectors for field, vectors in given.items() if vectors is not None}
        await service.in_thread(partial(postprocess.check_given, sides))
        return await service.answer(model, settling.max_sim_of(request, model.card), tokenized, tokenize, terms)

    async def _query_texts(self, model: ServedModel, request: MaxSimRequest) -> TokenizedBatch:
        side = InputType.QUERY
        prompt = model.tokenization.prompt(PromptChoice(literal=request.instruction, input_type=side))
        limits, texts = self._limits, request.query_texts
        letters = limits.check_texts(texts, QUERY_TEXT, limits.texts, prompt, "instruction")
        slices = model.tokenization.texts(texts, prompt, limits.settled(request.query_cut), QUERY_TEXT, side)
        return await self._service.tokenising(slices, letters)
