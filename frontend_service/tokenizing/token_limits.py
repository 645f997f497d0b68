"""The number of tokens that a text may have: the model's own limit, which a request may lower. Knows no tokenizer."""

from frontend_service.domain.requests import Truncation
from shared.card import ModelCard
from shared.errors import InvalidInput, LimitExceeded
from shared.vectors import InputType

UNLIMITED = 2**31 - 1
"""Tokens; a text has fewer, since its bytes are limited."""


class TokenLimits:
    """The token limits of one model."""

    def __init__(self, card: ModelCard, added: int) -> None:
        """`added`: special tokens around every text."""
        self._card = card
        self._added = added

    def of(self, cut: Truncation, side: InputType = InputType.UNSPECIFIED) -> int:
        """Tokens that a text may have, special ones included. Raises InvalidInput, LimitExceeded."""
        asked = cut.max_tokens
        if not cut.limited:
            return UNLIMITED
        if asked is None:
            return self._longest(side)
        self.check(cut, side)
        asked = min(asked, self._longest(side))
        least = max(1, self._added)
        if asked < least:
            raise InvalidInput(f"{cut.field} is {asked}, the special tokens alone need {least}", field=cut.field)
        return asked

    def check(self, cut: Truncation, side: InputType = InputType.UNSPECIFIED) -> None:
        """Raises LimitExceeded: a request may lower the model's limit, not raise it. A bound may lie above it."""
        own = self._longest(side)
        if cut.max_tokens is not None and cut.max_tokens > own and not cut.bound:
            raise LimitExceeded(f"{cut.field} is {cut.max_tokens}, the model's limit is {own}", field=cut.field)

    def _longest(self, side: InputType) -> int:
        """The model's own limit."""
        late = self._card.late_interaction
        if late is None or side is InputType.UNSPECIFIED:
            return self._card.max_tokens
        return late.query_length if side is InputType.QUERY else late.document_length
