"""What the model is, and its tokenizer for everybody: texts <-> token ids. Knows no door."""

from dataclasses import dataclass

from frontend_service.limits import Limits
from frontend_service.requests import DetokenizeRequest, TokenizeRequest
from frontend_service.service import Service
from frontend_service.tokenization import TokenizedText
from frontend_service.tokenized import Watch
from shared.card import ModelCard
from shared.errors import InvalidInput

TEXT = "texts[{}]"
SHOWN_TOKEN_BYTES = 48
"""Of a token in a Tokenize reply: id, text, offsets; long tokens are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model, and what requests to it may hold; the worker lets `queued_tokens` wait."""

    card: ModelCard
    limits: Limits
    queued_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTexts:
    """Texts as the model `model` sees them."""

    model: str
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


class Models:
    """The rpcs of ModelService, on domain types."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def get(self, name: str) -> Description:
        """Raises UnknownModel, WorkerUnavailable."""
        model = self._service.model(name)
        return Description(card=model.card, limits=self._service.limits, queued_tokens=model.queued_tokens)

    def cards(self) -> tuple[ModelCard, ...]:
        """Of all models. Raises WorkerUnavailable."""
        return (self._service.model("").card,)

    async def tokenize(self, request: TokenizeRequest) -> ShownTexts:
        """Ids, tokens and offsets of texts."""
        service, limits = self._service, self._service.limits
        model = service.model(request.model)
        prompt = model.tokenization.prompt(request.prompt)
        letters = limits.check_texts(request.texts, TEXT, limits.texts, prompt)

        def work(watch: Watch) -> list[TokenizedText]:
            def watch_reply(tokens: int) -> None:
                watch(tokens)
                limits.check_reply(tokens * SHOWN_TOKEN_BYTES, "ask for fewer texts")

            side = request.prompt.input_type
            return list(model.tokenization.each(request.texts, prompt, request.cut, TEXT, watch_reply, side))

        return ShownTexts(model=model.card.id, texts=await service.tokenising(work, letters))

    async def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        """Texts of ids."""
        service, tokenized = self._service, request.tokenized
        model = service.model(request.model)
        service.limits.check_count(len(tokenized), "tokenized", service.limits.texts)
        if not tokenized:
            raise InvalidInput("tokenized is empty", field="tokenized")

        def work() -> list[str]:
            for index, ids in enumerate(tokenized):
                if ids and not (min(ids) >= 0 and max(ids) < model.card.vocabulary_size):
                    raise InvalidInput(
                        f"tokenized[{index}] has an id outside 0 to {model.card.vocabulary_size - 1}",
                        field=f"tokenized[{index}]",
                    )
            return model.tokenization.detokenize(tokenized, request.skip_special_tokens)

        return Detokenized(model=model.card.id, texts=await service.in_thread(work))
