"""Tokens that a tokenizer knows and its model has no embedding for: added, and never trained."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from shared.errors import InvalidInput


class Beyond:
    """The tokens of one model that have no embedding. Ids are looked at only where there are such tokens at all."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """`rows` are the model's embeddings."""
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer, self._rows = tokenizer, rows
        self._any = tokenizer.get_vocab_size(with_added_tokens=False) > rows or max(added, default=0) >= rows

    def check(self, ids: Sequence[int], field: str, *, paired: bool = False) -> None:
        """Raises InvalidInput, naming the text `field`, or the pair that it is part of, and the token."""
        if not self._any or not ids or max(ids) < self._rows:
            return
        wrong = next(identity for identity in ids if identity >= self._rows)
        token, who = self._tokenizer.id_to_token(wrong), f"{field} or its partner" if paired else field
        raise InvalidInput(
            f"{who} has the token {token!r} ({wrong}), which the tokenizer knows and the model does not: its "
            f"embeddings end at {self._rows - 1}; leave it out",
            field=field,
        )
