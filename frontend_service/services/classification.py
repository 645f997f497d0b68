"""Classify and ClassifyTokens: labels of texts, of pairs of texts and of tokens. Knows no API."""

from array import array
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from frontend_service.domain.answer import FinishedAnswer
from frontend_service.domain.requests import ClassifyRequest, ClassifyTokensRequest
from frontend_service.domain.results import SCORE_BYTES
from frontend_service.services import job_options
from frontend_service.services.pipeline import Pipeline, PreparedRequest
from frontend_service.services.prepared_texts import PreparedTexts, prepare_texts
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.workers.interface import ServedModel
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.jobs import Classify, RaggedTokens
from shared.terms import RequestTerms
from shared.vectors import Task

TEXT, PAIR = "texts[{}]", "text_pairs[{}]"
TOKEN_BYTES = 12
"""Bytes of a classified token in a reply beside its scores: id and offsets."""
FEWER_TEXTS = "ask for fewer texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified(FinishedAnswer):
    """Scores of texts or pairs: one for each label, in the order of `labels`."""

    labels: tuple[str, ...]

    @property
    def best_first(self) -> NDArray[np.intp]:
        """The numbers of all labels for each row of scores, best first [rows, labels]; equal ones in their order."""
        ranked_by = np.frombuffer(self.answer.ranked_by, dtype="<f4").reshape(-1, len(self.labels))
        return np.argsort(-ranked_by, axis=1, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedTokens(Classified):
    """Scores of tokens, with the id of each and where it lies in its text with its prompt, in characters."""

    ids: "array[int]"
    starts: "array[int]"
    ends: "array[int]"


@dataclass(slots=True, kw_only=True)
class _TokenColumns:
    """Ids and offsets of the tokens that a reply shows: only those of `token_id`, or all where it is None."""

    token_id: int | None
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    starts: "array[int]" = field(default_factory=lambda: array("i"))
    ends: "array[int]" = field(default_factory=lambda: array("i"))

    def append(self, token_id: int, start: int, end: int) -> None:
        """Appends a token, if the reply shows tokens of its id."""
        if self.token_id in (None, token_id):
            self.ids.append(token_id)
            self.starts.append(start)
            self.ends.append(end)


class ClassificationService:
    """Answers requests for labels of texts, pairs and tokens, each as scores of all labels. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    async def texts(self, request: ClassifyRequest, terms: RequestTerms) -> Classified:
        """Classifies texts or pairs: scores [texts x labels]."""
        model = self._pipeline.workers.model(request.model)
        answer = await self._pipeline.run(self._prepare_classify(model, request), terms)
        return Classified(answer=answer, labels=model.card.labels)

    async def tokens(self, request: ClassifyTokensRequest, terms: RequestTerms) -> ClassifiedTokens:
        """Classifies tokens: scores [tokens x labels]. With `token_id` only the tokens of that id are classified."""
        model = self._pipeline.workers.model(request.model)
        columns = _TokenColumns(token_id=request.token_id)
        answer = await self._pipeline.run(self._prepare_classify_tokens(model, request, columns), terms)
        return ClassifiedTokens(
            answer=answer, labels=model.card.labels, ids=columns.ids, starts=columns.starts, ends=columns.ends
        )

    def _prepare_classify(self, model: ServedModel, request: ClassifyRequest) -> PreparedRequest:
        limits, card = self._limits, model.card
        job_options.check_task(card, Task.CLASSIFY)
        limits.check_reply(SCORE_BYTES * len(request.texts) * len(card.labels), FEWER_TEXTS)
        finish = job_options.activation_of(card, request.normalize)
        if request.pairs or card.asks_about_pairs:
            slices = model.tokenizer.pairs(self._pairs(model, request))
            return PreparedRequest(model=model, work=Classify(), slices=slices, finish=finish)
        texts = prepare_texts(model, limits, request.texts, TEXT, choice=request.prompt, cut=request.cut)
        return PreparedRequest(
            model=model, work=Classify(), slices=texts.tokenize(), letters=texts.letters, finish=finish
        )

    def _pairs(self, model: ServedModel, request: ClassifyRequest) -> PairTexts:
        """The pairs of a request, within the limits. Raises InvalidInput where none is given and one is needed."""
        if not request.pairs:
            raise InvalidInput("the model asks about pairs: text_pairs is empty", field="text_pairs")
        limits = self._limits
        limits.check_texts(request.texts, TEXT, limits.texts, model.tokenizer.prompt(request.prompt))
        limits.check_texts(request.pairs, PAIR, limits.texts)
        return PairTexts(
            firsts=request.texts,
            seconds=request.pairs,
            matrix=False,
            entry=PAIR,
            cut=limits.with_default(request.cut),
            prompt=request.prompt,
        )

    def _prepare_classify_tokens(
        self, model: ServedModel, request: ClassifyTokensRequest, columns: _TokenColumns
    ) -> PreparedRequest:
        card, token_id = model.card, request.token_id
        job_options.check_task(card, Task.CLASSIFY_TOKENS)
        if token_id is not None and not 0 <= token_id < card.vocabulary_size:
            raise InvalidInput(
                f"token_id is {token_id}, the vocabulary ends at {card.vocabulary_size - 1}", field="token_id"
            )
        texts = prepare_texts(model, self._limits, request.texts, TEXT, choice=request.prompt, cut=request.cut)
        return PreparedRequest(
            model=model,
            work=Classify(tokens=True, token_id=token_id),
            slices=_tokenize_into_columns(texts, columns),
            letters=texts.letters,
            check_tokens=partial(self._check_columns, card, columns),
            finish=job_options.activation_of(card, request.normalize),
        )

    def _check_columns(self, card: ModelCard, columns: _TokenColumns, _: RaggedTokens) -> None:
        """Raises ResultTooLarge for more tokens than a reply can show."""
        token_bytes = SCORE_BYTES * len(card.labels) + TOKEN_BYTES
        self._limits.check_reply(len(columns.ids) * token_bytes, FEWER_TEXTS)


def _tokenize_into_columns(texts: PreparedTexts, columns: _TokenColumns) -> TimeSlices[TokenizedBatch]:
    """Tokenises texts for a job, and fills in the columns of the reply."""
    ids, lengths, truncated = array("i"), [], []
    for tokenized_texts in texts.tokenize_with_offsets():
        for text in tokenized_texts:
            ids.extend(text.encoding.ids)
            lengths.append(len(text.encoding))
            truncated.append(text.truncated)
            for token_id, (start, end) in zip(text.encoding.ids, text.offsets, strict=True):
                columns.append(token_id, start, end)
        yield len(ids)
    tokens = RaggedTokens.packed(ids, lengths)
    return TokenizedBatch(tokens=tokens, truncated=tuple(truncated), prompt_lengths=(0,) * len(lengths))
