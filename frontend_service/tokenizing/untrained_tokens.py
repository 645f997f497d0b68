"""Tokens in a tokenizer for which its model has no embedding: added, and never trained."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from shared.errors import InvalidInput


class UntrainedTokens:
    """The tokens of one model that have no embedding. Ids are looked at only where a model has such tokens."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """`rows`: the number of embeddings that the model has."""
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer, self._rows = tokenizer, rows
        self._any = tokenizer.get_vocab_size(with_added_tokens=False) > rows or max(added, default=0) >= rows

    def check(self, ids: Sequence[int], field: str, *, paired: bool = False) -> None:
        """Raises InvalidInput for a token without an embedding, naming the text `field`, or its pair, and the token."""
        if not self._any or not ids or max(ids) < self._rows:
            return
        wrong = next(token_id for token_id in ids if token_id >= self._rows)
        token, text = self._tokenizer.id_to_token(wrong), f"{field} or its partner" if paired else field
        raise InvalidInput(
            f"{text} has the token {token!r} ({wrong}), which the tokenizer knows and the model does not: its "
            f"embeddings end at {self._rows - 1}; leave it out",
            field=field,
        )
