"""Labels of texts, of pairs and of tokens. Knows no door."""

from array import array
from dataclasses import dataclass

from frontend_service.domain.answer import Answer, FinishedAnswer
from frontend_service.domain.requests import ClassifyRequest, ClassifyTokensRequest
from frontend_service.services import job_options as settling
from frontend_service.services.pipeline import Pipeline
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_threads import Slices
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.workers.interface import ServedModel
from shared.errors import InvalidInput
from shared.jobs import Classify
from shared.ragged import RaggedTokens
from shared.terms import RequestTerms
from shared.vectors import Task

TEXT, PAIR = "texts[{}]", "text_pairs[{}]"
TOKEN_BYTES = 12
"""Of a classified token in a reply: id and offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified(FinishedAnswer):
    """Scores, one a label."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedTokens(Classified):
    """Scores of tokens, with the id of each and where it lies in its text with its prompt, in characters."""

    ids: "array[int]"
    starts: "array[int]"
    ends: "array[int]"


class ClassificationService:
    """The rpcs of ClassificationService, on domain types."""

    def __init__(self, service: Pipeline) -> None:
        self._service = service

    async def texts(self, request: ClassifyRequest, terms: RequestTerms) -> Classified:
        """Scores [texts x labels] of texts or pairs."""
        service, model = self._service, self._service.model(request.model)
        card = model.card
        settling.check_task(card, Task.CLASSIFY)
        service.limits.check_reply(4 * len(request.texts) * len(card.labels), "ask for fewer texts")
        if request.pairs or card.pair_template:
            return Classified(answer=await self._pairs(model, request, terms), labels=card.labels)
        prompt = model.tokenization.prompt(request.prompt)
        letters = service.limits.check_texts(request.texts, TEXT, service.limits.texts, prompt)
        start, cut = service.clock(), service.limits.settled(request.cut)

        tokenized = await service.tokenising(model.tokenization.texts(request.texts, prompt, cut, TEXT), letters)
        answer = await service.answer(model, Classify(), tokenized, service.clock() - start, terms)
        answer = await service.activated(answer, card, request.normalize)
        return Classified(answer=answer, labels=card.labels)

    async def _pairs(self, model: ServedModel, request: ClassifyRequest, terms: RequestTerms) -> Answer:
        if not request.pairs:
            raise InvalidInput("the model asks about pairs: text_pairs is empty", field="text_pairs")
        limits = self._service.limits
        limits.check_texts(request.texts, TEXT, limits.texts, model.tokenization.prompt(request.prompt))
        limits.check_texts(request.pairs, PAIR, limits.texts)
        pairs = PairTexts(
            firsts=request.texts,
            seconds=request.pairs,
            matrix=False,
            entry=PAIR,
            cut=limits.settled(request.cut),
            prompt=request.prompt,
        )
        return await self._service.classify_pairs(model, pairs, request.normalize, terms)

    async def tokens(self, request: ClassifyTokensRequest, terms: RequestTerms) -> ClassifiedTokens:
        """Scores [tokens x labels], of the tokens of one id where asked so."""
        service, model = self._service, self._service.model(request.model)
        card = model.card
        settling.check_task(card, Task.CLASSIFY_TOKENS)
        if request.token_id is not None and not 0 <= request.token_id < card.vocabulary_size:
            raise InvalidInput(
                f"token_id is {request.token_id}, the vocabulary ends at {card.vocabulary_size - 1}", field="token_id"
            )
        prompt = model.tokenization.prompt(request.prompt)
        letters = service.limits.check_texts(request.texts, TEXT, service.limits.texts, prompt)
        start, shown = service.clock(), (array("i"), array("i"), array("i"))
        cut = service.limits.settled(request.cut)

        def slices() -> Slices[TokenizedBatch]:
            flat, lengths, truncated = array("i"), [], []
            for some in model.tokenization.each(request.texts, prompt, cut, TEXT):
                for text in some:
                    flat.extend(text.encoding.ids)
                    lengths.append(len(text.encoding))
                    truncated.append(text.truncated)
                    for identity, (begin, end) in zip(text.encoding.ids, text.offsets, strict=True):
                        if request.token_id in (None, identity):
                            for column, value in zip(shown, (identity, begin, end), strict=True):
                                column.append(value)
                yield len(flat)
            tokens = RaggedTokens.packed(flat, lengths)
            return TokenizedBatch(tokens=tokens, truncated=tuple(truncated), prompt_lengths=(0,) * len(lengths))

        tokenized = await service.tokenising(slices(), letters)
        service.limits.check_reply(len(shown[0]) * (4 * len(card.labels) + TOKEN_BYTES), "ask for fewer texts")
        job = Classify(tokens=True, token_id=request.token_id)
        answer = await service.answer(model, job, tokenized, service.clock() - start, terms)
        answer = await service.activated(answer, card, request.normalize)
        ids, starts, ends = shown
        return ClassifiedTokens(answer=answer, labels=card.labels, ids=ids, starts=starts, ends=ends)
