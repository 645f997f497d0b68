"""The number of tokens that a text may have: the model's limit, which a request may lower. Knows no tokenizer."""

from frontend_service.domain.requests import Truncation
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput, LimitExceeded
from shared.vectors import InputType

UNLIMITED = 2**31 - 1
"""Limit in tokens that no text reaches, since its bytes are limited."""


class TokenLimits:
    """The token limits of one model."""

    def __init__(self, card: ModelCard, added: int) -> None:
        """`added`: the number of special tokens around every text."""
        self._card = card
        self._added = added

    def resolve(self, cut: Truncation, input_type: InputType = InputType.UNSPECIFIED) -> int:
        """The most tokens that a text may have, special ones included. Raises InvalidInput, LimitExceeded."""
        if not cut.limited:
            return UNLIMITED
        if cut.max_tokens is None:
            return self._model_limit(input_type)
        self.check(cut, input_type)
        limit = min(cut.max_tokens, self._model_limit(input_type))
        least = max(1, self._added)
        if limit < least:
            raise InvalidInput(f"{cut.field} is {limit}, the special tokens alone need {least}", field=cut.field)
        return limit

    def check(self, cut: Truncation, input_type: InputType = InputType.UNSPECIFIED) -> None:
        """Raises LimitExceeded where a request would raise the model's limit. A bound may lie above it."""
        limit = self._model_limit(input_type)
        if cut.max_tokens is not None and cut.max_tokens > limit and not cut.bound:
            raise LimitExceeded(
                f"{cut.field} is {cut.max_tokens}, the model's limit is {limit}{self.reason(limit)}", field=cut.field
            )

    def reason(self, limit: int) -> str:
        """What errors add to a resolved limit: the worker's setting, where that limits the model; else nothing."""
        card = self._card
        limited = card.limited_by and limit == max(card.chunk_tokens, card.cache_tokens)
        return f" (the worker's {card.limited_by})" if limited else ""

    def too_long(self, entry: str, length: int, limit: int, remedy: str, *, whole: bool) -> InputTooLong:
        """The error for a text of `length` tokens; where it was not read as a `whole`, it has more than `limit`.

        `entry`: what the error calls the text. `remedy`: its advice.
        """
        has = f"{length} tokens" if whole else f"more than {limit} tokens"
        return InputTooLong(f"{entry} has {has}, the limit is {limit}{self.reason(limit)}; {remedy}", field=entry)

    def _model_limit(self, input_type: InputType) -> int:
        """The model's limit for texts of this kind: late-interaction models and listwise rerankers have others for
        queries and documents."""
        sides = self._card.late_interaction or self._card.listwise
        if sides is None or input_type is InputType.UNSPECIFIED:
            return self._card.max_tokens
        return sides.query_length if input_type is InputType.QUERY else sides.document_length
