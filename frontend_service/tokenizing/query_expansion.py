"""Query expansion: queries filled up to a fixed length (ColBERT's query augmentation, arXiv:2004.12832)."""

from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

from shared import vectors
from shared.card import ModelCard


class QueryExpander:
    """Expands the queries of one model; does nothing for a model that expands none.

    `attended`: whether other tokens attend to those of an expansion; True where there is none.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        late = card.late_interaction
        expands = late is not None and late.query_expansion is not vectors.QueryExpansion.NONE
        self._length = late.expansion_length if late and expands else 0
        self._id = late.expansion_id if late and expands else -1
        self._token = tokenizer.id_to_token(self._id) if expands else ""
        self.attended = not expands or (late is not None and late.attend_to_expansion)
        # A model without a mask token expands with the token that ends every text: one of them belongs to the text.
        self._text_ends = int(expands and tokenizer.encode("a").ids[-1:] == [self._id])

    def expand(self, encoding: Encoding) -> int:
        """Fills a query up in place, and returns the number of tokens that were added."""
        missing = max(0, self._length - len(encoding))
        if missing:
            encoding.pad(self._length, pad_id=self._id, pad_token=self._token)
        return missing

    def expansion_length(self, ids: Sequence[int]) -> int:
        """The number of tokens at the end of a query's ids that `expand` would have added.

        Only ids of exactly the length that `expand` fills up to can end with an expansion.
        """
        if len(ids) != self._length:
            return 0
        count = 0
        while count < len(ids) - 1 and ids[-1 - count] == self._id:
            count += 1
        return max(0, count - self._text_ends)
