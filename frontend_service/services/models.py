"""Models, and their tokenizers for everybody: texts to token ids and back. Knows no API and sends no jobs."""

from collections.abc import Iterator
from dataclasses import dataclass

from frontend_service.domain.limits import FEWER_TEXTS, SHOWN_TOKEN_BYTES, TEXT_LETTERS, utf8_bytes
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest
from frontend_service.services.pipeline import Pipeline, ServedModel
from frontend_service.tokenizing.tokenizer import ModelTokenizer, TokenizedText
from frontend_service.tokenizing.tokens import Chunks
from shared.card import ModelCard
from shared.errors import InvalidInput

TEXT = "texts[{}]"
ID_LETTERS = 4
"""Letters that are tokenised in the time that writing the text of one id takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTexts:
    """Texts as the model `model` sees them."""

    model: str
    texts: list[TokenizedText]

    @property
    def size(self) -> int:
        """Approximate bytes of its reply."""
        return SHOWN_TOKEN_BYTES * sum(len(text.encoding) for text in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized:
    """Texts that the model `model` wrote from ids; `size`: their bytes."""

    model: str
    texts: list[str]
    size: int


class ModelService:
    """Describes models, and shows what their tokenizers make of texts and ids. Raises SelvageError."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limits = pipeline.limits

    def get(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one. Raises UnknownModel, WorkerUnavailable."""
        return self._pipeline.workers.model(name)

    def cards(self) -> tuple[ModelCard, ...]:
        """The cards of all models. Raises WorkerUnavailable where there is none."""
        return tuple(model.card for model in self._pipeline.workers.models())

    async def tokenize(self, request: TokenizeRequest) -> ShownTexts:
        """Tokenises texts: ids, tokens and offsets. Raises ResultTooLarge as soon as the reply is too large, and
        Overloaded where there is no room for it."""
        pipeline = self._pipeline
        model = pipeline.workers.model(request.model)
        tokenizer, prompt, cut, letters = pipeline.text_options(model, request.texts, TEXT, request.prompt, request.cut)
        chunks = tokenizer.shown_chunks(request.texts, prompt, cut, TEXT, request.prompt.input_type)
        texts = await pipeline.in_chunks(self._within_reply(chunks), letters)
        shown = ShownTexts(model=model.card.id, texts=texts)
        pipeline.reserve_bytes(shown.size)
        return shown

    async def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        """Writes texts from ids. Raises LimitExceeded for more lists or ids than a request may have, and InvalidInput
        where ids of queries and of documents mean different texts and the request does not say which they are."""
        pipeline, tokenized = self._pipeline, request.tokenized
        model = pipeline.workers.model(request.model)
        self._limits.check_count(len(tokenized), "tokenized", self._limits.texts)
        if not tokenized:
            raise InvalidInput("tokenized is empty", field="tokenized")
        self._limits.check_ids(tokenized, "tokenized")
        letters = sum(ID_LETTERS * len(ids) + TEXT_LETTERS for ids in tokenized)
        written = [
            await pipeline.in_chunks(self._detokenize(tokenizer, request), letters)
            for tokenizer in model.writers_of(request.input_type)
        ]
        first = written[0]
        if any(texts != first for texts in written[1:]):
            raise InvalidInput(
                "these ids mean one text of a query and another of a document: say which", field="input_type"
            )
        size = sum(map(utf8_bytes, first))
        pipeline.reserve_bytes(size)
        return Detokenized(model=model.card.id, texts=first, size=size)

    def _within_reply(self, shown: Iterator[list[TokenizedText]]) -> Chunks[list[TokenizedText]]:
        """All texts, as far as a reply can show them."""
        texts: list[TokenizedText] = []
        tokens = 0
        for chunk in shown:
            texts += chunk
            tokens += sum(len(text.encoding) for text in chunk)
            self._limits.check_reply(tokens * SHOWN_TOKEN_BYTES, FEWER_TEXTS)
            yield tokens
        return texts

    def _detokenize(self, tokenizer: ModelTokenizer, request: DetokenizeRequest) -> Chunks[list[str]]:
        texts: list[str] = []
        size = 0
        for chunk in tokenizer.detokenize(request.tokenized, request.skip_special_tokens):
            texts += chunk
            size += sum(map(utf8_bytes, chunk))
            self._limits.check_reply(size, "ask for fewer ids")
            yield 0  # the ids are counted already
        return texts
