"""Classify and ClassifyTokens: labels of texts, of pairs of texts and of tokens. Knows no API."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from frontend_service.domain.limits import CLASSIFIED_TOKEN_BYTES, FEWER_TEXTS, NUMBER_BYTES
from frontend_service.domain.requests import ClassifyRequest, ClassifyTokensRequest
from frontend_service.services import repeats
from frontend_service.services.pipeline import Answer, Pipeline, ServedModel, check_task
from frontend_service.services.repeats import Places
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer, TokenizedText
from frontend_service.tokenizing.tokens import Chunks, TokenizedBatch
from shared.caller import RequestTerms
from shared.errors import InvalidInput
from shared.jobs import Classify, RaggedTokens
from shared.vectors import Task

TEXT, PAIR = "texts[{}]", "text_pairs[{}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """Scores of texts or pairs: one for each label, in the order of `labels`."""

    answer: Answer
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


class ClassificationService:
    """Answers requests for labels of texts, pairs and tokens, each as scores of all labels. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    async def texts(self, request: ClassifyRequest, terms: RequestTerms) -> Classified:
        """Classifies texts or pairs: scores [texts x labels]."""
        pipeline, limits = self._pipeline, self._limits
        model = pipeline.model(request.model)
        card = model.card
        check_task(card, Task.CLASSIFY)
        limits.check_reply(NUMBER_BYTES * len(request.texts) * len(card.labels), FEWER_TEXTS)
        began = pipeline.clock()
        if request.pairs or card.asks_about_pairs:
            batch, places = await self._tokenize_pairs(model, request)
        else:
            batch, places = await pipeline.tokenize(model, request.texts, TEXT, choice=request.prompt, cut=request.cut)
        sent = await pipeline.sent(batch, places)
        answer = await pipeline.run(model, Classify(), batch, terms, began=began, sent=sent)
        answer = await pipeline.activate(await pipeline.as_sent(answer, places), card, request.normalize)
        return Classified(answer=answer, labels=card.labels)

    async def tokens(self, request: ClassifyTokensRequest, terms: RequestTerms) -> ClassifiedTokens:
        """Classifies tokens: scores [tokens x labels]. With `token_id` only the tokens of that id are classified."""
        pipeline, limits, token_id = self._pipeline, self._limits, request.token_id
        model = pipeline.model(request.model)
        card = model.card
        check_task(card, Task.CLASSIFY_TOKENS)
        if token_id is not None and not 0 <= token_id < card.vocabulary_size:
            raise InvalidInput(
                f"token_id is {token_id}, the vocabulary ends at {card.vocabulary_size - 1}", field="token_id"
            )
        began = pipeline.clock()
        tokenizer, prompt, cut, letters = pipeline.text_options(model, request.texts, TEXT, request.prompt, request.cut)
        distinct = await pipeline.distinct(request.texts, letters)
        texts = tokenizer.shown_chunks(distinct.once(request.texts), prompt, cut, TEXT, numbers=distinct.first)
        chunks = _tokenize_into_columns(tokenizer, texts, distinct.first, token_id)
        batch, columns = await pipeline.in_chunks(chunks, letters)
        places = distinct.inverse if distinct.has_repeats else None
        sent = await pipeline.sent(batch, places)
        rows = repeats.ragged_rows(np.array(columns.counts, dtype=np.int64), distinct.inverse)
        token_bytes = NUMBER_BYTES * len(card.labels) + CLASSIFIED_TOKEN_BYTES
        limits.check_reply(len(rows) * token_bytes, FEWER_TEXTS)
        work = Classify(tokens=True, token_id=token_id)
        answer = await pipeline.run(model, work, batch, terms, began=began, sent=sent)
        answer = await pipeline.activate(await pipeline.as_sent(answer, places), card, request.normalize)
        ids, starts, ends = columns.ids, columns.starts, columns.ends
        if places is not None:
            ids, starts, ends = await pipeline.in_thread(partial(columns.at, rows))
        return ClassifiedTokens(answer=answer, labels=card.labels, ids=ids, starts=starts, ends=ends)

    async def _tokenize_pairs(
        self, model: ServedModel, request: ClassifyRequest
    ) -> tuple[TokenizedBatch, Places | None]:
        """The pairs of a request, each once. Raises InvalidInput where none is given and one is needed."""
        if not request.pairs:
            raise InvalidInput("the model asks about pairs: text_pairs is empty", field="text_pairs")
        limits = self._limits
        letters = limits.check_texts(request.texts, TEXT, limits.texts, model.tokenizer.prompt(request.prompt))
        letters += limits.check_texts(request.pairs, PAIR, limits.texts)
        keys = list(zip(request.texts, request.pairs, strict=True))
        distinct = await self._pipeline.distinct(keys, letters)
        pairs = PairTexts(
            firsts=distinct.once(request.texts),
            seconds=distinct.once(request.pairs),
            matrix=False,
            entry=PAIR,
            cut=limits.with_default(request.cut),
            prompt=request.prompt,
            first_numbers=distinct.first,
            numbers=distinct.first,
        )
        batch = await self._pipeline.in_chunks(model.tokenizer.pairs(pairs))
        return batch, distinct.inverse if distinct.has_repeats else None


@dataclass(slots=True, kw_only=True)
class _TokenColumns:
    """Ids and offsets of the tokens that a reply shows, end to end; how many each text has in `counts`."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    starts: "array[int]" = field(default_factory=lambda: array("i"))
    ends: "array[int]" = field(default_factory=lambda: array("i"))
    counts: list[int] = field(default_factory=list)

    def add(self, text: TokenizedText, token_id: int | None) -> None:
        """Adds the tokens of a text: those of an id, or all."""
        before = len(self.ids)
        for shown_id, (start, end) in zip(text.encoding.ids, text.offsets, strict=True):
            if token_id is None or shown_id == token_id:
                self.ids.append(shown_id)
                self.starts.append(start)
                self.ends.append(end)
        self.counts.append(len(self.ids) - before)

    def at(self, rows: Places) -> "tuple[array[int], array[int], array[int]]":
        """The tokens at these places."""
        places = rows.tolist()
        ids, starts, ends = (
            array("i", [column[place] for place in places]) for column in (self.ids, self.starts, self.ends)
        )
        return ids, starts, ends


def _tokenize_into_columns(
    tokenizer: ModelTokenizer, texts: Iterator[list[TokenizedText]], numbers: Iterable[int], token_id: int | None
) -> Chunks[tuple[TokenizedBatch, _TokenColumns]]:
    """Tokenises texts for a job, and fills in the columns of the reply. `numbers`: those of the texts in the request.

    Raises InvalidInput for tokens without an embedding.
    """
    columns, ids, lengths, truncated = _TokenColumns(), array("i"), [], []
    number = iter(numbers)
    for chunk in texts:
        for text in chunk:
            tokenizer.check_trained(text.encoding.ids, TEXT.format(next(number)))
            ids.extend(text.encoding.ids)
            lengths.append(len(text.encoding))
            truncated.append(text.truncated)
            columns.add(text, token_id)
        yield len(ids)
    tokens = RaggedTokens.packed(ids, lengths)
    batch = TokenizedBatch(tokens=tokens, truncated=tuple(truncated), prompt_lengths=(0,) * len(lengths))
    return batch, columns
