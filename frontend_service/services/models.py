"""What the model is, and its tokenizer for everybody: texts <-> token ids. Knows no door."""

from dataclasses import dataclass

from frontend_service.domain.limits import TEXT_LETTERS, Limits
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest
from frontend_service.services.pipeline import Pipeline
from frontend_service.tokenizing.fair_threads import Slices
from frontend_service.tokenizing.tokenizer import TokenizedText
from shared.card import ModelCard
from shared.errors import InvalidInput

TEXT = "texts[{}]"
SHOWN_TOKEN_BYTES = 48
"""Of a token in a Tokenize reply: id, text, offsets; long tokens are rare."""

ID_LETTERS = 4
"""To write the text of an id takes as long as to tokenise so many letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model, and what requests to it may hold; the worker lets `queued_tokens` wait."""

    card: ModelCard
    limits: Limits
    queued_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTexts:
    """Texts as the model `model` sees them, each after the `prompt`."""

    model: str
    prompt: str
    texts: list[TokenizedText]

    @property
    def size(self) -> int:
        """Bytes that a reply of it holds, about."""
        return SHOWN_TOKEN_BYTES * sum(len(text.encoding) for text in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized:
    """Texts that the model `model` wrote from ids."""

    model: str
    texts: list[str]


class ModelService:
    """The rpcs of ModelService, on domain types."""

    def __init__(self, service: Pipeline) -> None:
        self._service = service

    def get(self, name: str) -> ModelDescription:
        """Raises UnknownModel, WorkerUnavailable."""
        model = self._service.model(name)
        return ModelDescription(card=model.card, limits=self._service.limits, queued_tokens=model.queued_tokens)

    def cards(self) -> tuple[ModelCard, ...]:
        """Of all models. Raises WorkerUnavailable."""
        return tuple(model.card for model in self._service.models())

    async def tokenize(self, request: TokenizeRequest) -> ShownTexts:
        """Ids, tokens and offsets of texts."""
        service, limits = self._service, self._service.limits
        model = service.model(request.model)
        prompt = model.tokenization.prompt(request.prompt)
        letters = limits.check_texts(request.texts, TEXT, limits.texts, prompt)
        cut, side = limits.settled(request.cut), request.prompt.input_type

        def slices() -> Slices[list[TokenizedText]]:
            shown: list[TokenizedText] = []
            tokens = 0
            for some in model.tokenization.each(request.texts, prompt, cut, TEXT, side):
                shown += some
                tokens += sum(len(text.encoding) for text in some)
                limits.check_reply(tokens * SHOWN_TOKEN_BYTES, "ask for fewer texts")
                yield tokens
            return shown

        return ShownTexts(model=model.card.id, prompt=prompt, texts=await service.tokenising(slices(), letters))

    async def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        """Texts of ids. Raises LimitExceeded for more lists or ids than a request may have."""
        service, limits, tokenized = self._service, self._service.limits, request.tokenized
        model = service.model(request.model)
        limits.check_count(len(tokenized), "tokenized", limits.texts)
        if not tokenized:
            raise InvalidInput("tokenized is empty", field="tokenized")
        limits.check_given(tokenized, "tokenized")

        def slices() -> Slices[list[str]]:
            texts: list[str] = []
            size = 0
            for some in model.tokenization.detokenize(tokenized, request.skip_special_tokens):
                texts += some
                size += sum(len(text.encode()) for text in some)
                limits.check_reply(size, "ask for fewer ids")
                yield 0  # the ids are counted already
            return texts

        letters = sum(ID_LETTERS * len(ids) + TEXT_LETTERS for ids in tokenized)
        return Detokenized(model=model.card.id, texts=await service.tokenising(slices(), letters))
