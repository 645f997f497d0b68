"""Rerank, Score and MaxSim: queries against documents. Knows no API."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from frontend_service.domain.answer import Answer, FinishedAnswer
from frontend_service.domain.limits import utf8_bytes
from frontend_service.domain.ranking_requests import MaxSimRequest, RerankRequest, ScoreRequest
from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.domain.results import SCORE_BYTES
from frontend_service.postprocess import explanation
from frontend_service.postprocess import ranking as postprocess
from frontend_service.postprocess.explanation import MatchedToken
from frontend_service.services import job_options, listwise
from frontend_service.services.given_vectors import check_dimensions, check_finite, vectors_of
from frontend_service.services.pipeline import Pipeline, PreparedRequest
from frontend_service.services.prepared_texts import PreparedTexts, prepare_texts
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.workers.interface import ServedModel
from shared.jobs import Classify, RaggedTokens
from shared.terms import RequestTerms
from shared.vectors import InputType, Layout, ScoringMethod

DOCUMENT = "documents[{}]"
QUERY_TEXT = "query_texts[{}]"
REPLY_MATCH_BYTES = 9
"""Most bytes of a winner and its similarity in a MaxSim reply."""
TOKEN_MATCH_BYTES = 32
"""Bytes of a winner with both tokens as texts; most have a few letters."""
TEXT_FIELD_BYTES = 32
"""Most bytes that a message adds to a document's text."""
RANK_BYTES = 64
"""Bytes that are copied in the time that one place of a ranking, with its score, takes to write."""
Ranking = list[tuple[int, float]]
"""Documents by their number in the request, with their scores, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked(FinishedAnswer):
    """Documents in order.

    `explanations`: one for each document of `ranking`, or none at all. `documents`: all texts of the request, where the
    reply shows those of `ranking`.
    """

    ranking: Ranking
    explanations: Sequence[Sequence[MatchedToken]] = ()
    documents: Sequence[str] | None = None

    @property
    def size(self) -> int:
        """Approximate bytes of the texts, the ranking and the explanations."""
        matches = TOKEN_MATCH_BYTES * sum(map(len, self.explanations))
        return matches + RANK_BYTES * len(self.ranking) + sum(len(text) for text in self.texts if text is not None)

    @property
    def texts(self) -> Iterator[str | None]:
        """Texts of the documents of `ranking`."""
        return (None if self.documents is None else self.documents[index] for index, _ in self.ranking)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplyExtras:
    """What a reply holds beside scores. `explained`: number of explained documents; `text_bytes`: of their texts."""

    explained: int = 0
    text_bytes: int = 0


NO_EXTRAS = _ReplyExtras()


class RankingService:
    """Answers requests that compare queries with documents: texts by any method, or given vectors by MaxSim.

    Raises SelvageError.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    async def rerank(self, request: RerankRequest, terms: RequestTerms) -> Reranked:
        """Ranks documents, best first, with their texts and explanations where the request asks for them."""
        model = self._pipeline.workers.model(request.model)
        extras = _ReplyExtras(explained=request.shown_count, text_bytes=await self._document_bytes(request))
        answer = await self._pipeline.run(self._prepare_scores(model, request, extras), terms)
        return await self._rank(model, request, answer)

    async def score(self, request: ScoreRequest, terms: RequestTerms) -> Answer:
        """Scores pairs of queries and documents, in the order of the request.

        The answer's tokens are those of queries, then of documents; of a cross-encoder those of the pairs, and of a
        listwise reranker those of the blocks.
        """
        model = self._pipeline.workers.model(request.model)
        return await self._pipeline.run(self._prepare_scores(model, request, NO_EXTRAS), terms)

    async def max_sim(self, request: MaxSimRequest, terms: RequestTerms) -> Answer:
        """Scores document vectors by query vectors or by query texts. The answer's tokens are those of the texts."""
        model = self._pipeline.workers.model(request.model)
        return await self._pipeline.run(self._prepare_max_sim(model, request), terms)

    async def _document_bytes(self, request: RerankRequest) -> int:
        """Most bytes of the documents that the reply shows. Raises ResultTooLarge."""
        if not request.return_documents:
            return 0
        largest = partial(_largest_bytes, request.documents, request.shown_count)
        size = await self._pipeline.in_thread(largest)
        self._limits.check_reply(size, "set top_n, or leave return_documents unset")
        return size

    async def _rank(self, model: ServedModel, request: RerankRequest, answer: Answer) -> Reranked:
        """Sorts the documents, cuts them to `top_n`, and explains those that the reply shows."""
        in_thread = self._pipeline.in_thread
        ranking = await in_thread(lambda: postprocess.rank(answer.ranked_by, answer.result.scores, request.top_n))
        documents = request.documents if request.return_documents else None
        if not request.explain:
            return Reranked(answer=answer, ranking=ranking, documents=documents)
        places, token_text = [index for index, _ in ranking], model.tokenizer.token_text
        explain = partial(explanation.explain, answer.result, answer.tokens, places, token_text)
        return Reranked(answer=answer, ranking=ranking, documents=documents, explanations=await in_thread(explain))

    def _prepare_scores(self, model: ServedModel, request: ScoreRequest, extras: _ReplyExtras) -> PreparedRequest:
        """Prepares the job of a Rerank or Score, by the method that request and model agree on."""
        method = job_options.resolve_method(request, model.card)
        rows, columns = request.layout.shape(len(request.queries), len(request.documents))
        self._limits.check_scores(rows, columns)
        self._limits.check_reply(SCORE_BYTES * rows * columns, "ask for fewer scores")
        if method is ScoringMethod.LISTWISE:
            return listwise.prepare(model, self._limits, request, DOCUMENT)
        if method is ScoringMethod.CROSS_ENCODER:
            return self._prepare_pairs(model, request)
        return self._prepare_vectors(model, request, method, extras)

    def _prepare_pairs(self, model: ServedModel, request: ScoreRequest) -> PreparedRequest:
        """Prepares a cross-encoder's job: every pair is a sequence, and its only logit the score."""
        limits, choice = self._limits, PromptChoice(literal=request.instruction)
        document_cut = limits.with_default(request.document_cut)
        # A request without a limit for whole sequences says for its documents whether texts may be cut at all.
        pair_cut = Truncation(truncate=document_cut.truncate, side=document_cut.side)
        pairs = PairTexts(
            firsts=request.queries,
            seconds=request.documents,
            matrix=request.layout is Layout.MATRIX,
            entry=DOCUMENT,
            cut=limits.with_default(request.sequence_cut) if request.sequence_cut else pair_cut,
            first_cut=limits.with_default(request.query_cut),
            second_cut=document_cut,
            first_entry=request.query_entry,
            prompt=choice,
        )
        prompt = model.tokenizer.prompt(choice)
        limits.check_texts(request.queries, request.query_entry, limits.texts, prompt, "instruction")
        # a template is put around a whole document before it is cut
        cut = bool(pairs.cut.truncate and document_cut.truncate) and not model.card.pair_template
        limits.check_texts(request.documents, DOCUMENT, limits.documents, cut=cut)
        return PreparedRequest(
            model=model,
            work=Classify(),
            slices=model.tokenizer.pairs(pairs),
            finish=job_options.activation_of(model.card, request.normalization.activate),
        )

    def _prepare_vectors(
        self, model: ServedModel, request: ScoreRequest, method: ScoringMethod, extras: _ReplyExtras
    ) -> PreparedRequest:
        """Prepares the job of a model that makes vectors of queries and documents, and compares these."""
        limits = self._limits
        queries = prepare_texts(
            model,
            limits,
            request.queries,
            request.query_entry,
            choice=PromptChoice(literal=request.instruction, input_type=InputType.QUERY),
            cut=request.query_cut,
            sequence_cut=request.sequence_cut,
            input_type=InputType.QUERY,
            prompt_field="instruction",
        )
        documents = prepare_texts(
            model,
            limits,
            request.documents,
            DOCUMENT,
            choice=PromptChoice(input_type=InputType.DOCUMENT),
            cut=request.document_cut,
            sequence_cut=request.sequence_cut,
            input_type=InputType.DOCUMENT,
            count=limits.documents,
        )
        return PreparedRequest(
            model=model,
            work=job_options.resolve_score(request, method, model.card),
            slices=_tokenize_sides(queries, documents),
            letters=queries.letters + documents.letters,
            check_tokens=partial(self._check_explanations, request, extras),
        )

    def _check_explanations(self, request: ScoreRequest, extras: _ReplyExtras, tokens: RaggedTokens) -> None:
        """Raises LimitExceeded for more winners than a worker explains, and ResultTooLarge."""
        if not request.explain:
            return
        query_tokens = tokens.lengths[0]
        _, columns = request.layout.shape(len(request.queries), len(request.documents))
        self._limits.check_matches(columns * query_tokens)
        size = extras.text_bytes + extras.explained * query_tokens * TOKEN_MATCH_BYTES
        self._limits.check_reply(size, "set top_n, or leave explain unset")

    def _prepare_max_sim(self, model: ServedModel, request: MaxSimRequest) -> PreparedRequest:
        """Prepares the job of a MaxSim. Its vectors are checked for NaN and infinity later, in a thread."""
        limits, sides = self._limits, vectors_of(request)
        for field, vectors in sides.items():
            limits.check_count(len(vectors.lengths), f"{field}.lengths", limits.documents)
            limits.check_vectors(field, vectors.rows, vectors.dimensions)
        limits.check_scores(*request.layout.shape(request.query_count, len(request.documents.lengths)))
        if request.queries is None:
            job_options.check_token_rows(model.card, request.documents.dimensions)
            texts = self._prepare_query_texts(model, request)
        else:
            check_dimensions(request.queries, request.documents)
            texts = None
        return PreparedRequest(
            model=model,
            work=job_options.resolve_max_sim(request, model.card),
            slices=texts.tokenize() if texts else None,
            letters=texts.letters if texts else None,
            check_tokens=partial(self._check_comparisons, request),
            check_values=partial(check_finite, sides),
        )

    def _prepare_query_texts(self, model: ServedModel, request: MaxSimRequest) -> PreparedTexts:
        return prepare_texts(
            model,
            self._limits,
            request.query_texts,
            QUERY_TEXT,
            choice=PromptChoice(literal=request.instruction, input_type=InputType.QUERY),
            cut=request.query_cut,
            input_type=InputType.QUERY,
            prompt_field="instruction",
        )

    def _check_comparisons(self, request: MaxSimRequest, tokens: RaggedTokens) -> None:
        """Raises LimitExceeded for more products of rows or winners than a worker makes, and ResultTooLarge."""
        limits, query_rows = self._limits, tokens.lengths if request.queries is None else request.queries.lengths
        limits.check_similarities(request.similarities(query_rows))
        matches = request.matches(query_rows) if request.explain else 0
        limits.check_matches(matches)
        rows, columns = request.layout.shape(request.query_count, len(request.documents.lengths))
        remedy = "ask for fewer scores" + (", or leave explain unset" if request.explain else "")
        limits.check_reply(SCORE_BYTES * rows * columns + REPLY_MATCH_BYTES * matches, remedy)


def _tokenize_sides(queries: PreparedTexts, documents: PreparedTexts) -> TimeSlices[TokenizedBatch]:
    """Tokenises queries, then documents, into one batch."""
    query_batch = yield from queries.tokenize()
    return query_batch + (yield from documents.tokenize())


def _largest_bytes(texts: Sequence[str], count: int) -> int:
    """UTF-8 bytes of the `count` largest texts, with what a message adds to each."""
    sizes = sorted(map(utf8_bytes, texts), reverse=True)
    return sum(sizes[:count]) + TEXT_FIELD_BYTES * count
