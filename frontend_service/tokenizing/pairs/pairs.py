"""Pairs of texts to tokenise, and the checks that hold for both forms of pairs. Knows no tokenizer.

The forms are in segments.py and template.py; tokenizer.py takes the one that a model has.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend_service.domain.requests import DEFAULT_PROMPT, DEFAULT_TRUNCATION, PromptChoice, Truncation
from shared.errors import InputTooLong, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTexts:
    """First and second texts, paired each with each (`matrix`) or one by one.

    `cut` is for a pair as a whole, `first_cut` and `second_cut` are for either text alone. `entry` is what errors call
    a second text, such as `documents[{}]`, `first_entry` a first one. `prompt` fills a template's instruction, or goes
    before each first text. `limit_reason`: what errors add to the limit of a pair, see `TokenLimits.reason`.
    """

    firsts: Sequence[str]
    seconds: Sequence[str]
    matrix: bool
    entry: str
    cut: Truncation
    first_cut: Truncation = DEFAULT_TRUNCATION
    second_cut: Truncation = DEFAULT_TRUNCATION
    first_entry: str = "queries[{}]"
    prompt: PromptChoice = DEFAULT_PROMPT
    limit_reason: str = ""

    def room(self, limit: int, fixed: int) -> int:
        """Tokens that the limit leaves to the texts, beside the `fixed` ones of every pair. Raises InvalidInput."""
        if limit <= fixed:
            field = self.cut.field if self.cut.max_tokens == limit else ""
            name = field or "the model's limit"
            raise InvalidInput(
                f"{name} is {limit}{self.limit_reason}, what every pair has alone needs {fixed}", field=field
            )
        return limit - fixed

    def check_cut(self, column: int, tokens: int, limit: int, *, whole: bool) -> None:
        """Raises InputTooLong, naming the second text `column`, where a pair over the limit may not be cut.

        `whole`: whether its texts were read to their ends, so that they have exactly `tokens` tokens.
        """
        if not self.cut.truncate:
            field = self.entry.format(column)
            raise InputTooLong(
                f"{field} and its partner have {_count(tokens, limit, whole)} tokens together, the limit is "
                f"{limit}{self.limit_reason}; truncate would cut them",
                field=field,
            )

    def sequence(self, column: int, ids: Sequence[int], *, second_segment: int = 0, truncated: bool) -> "PairSequence":
        """Makes the pair of the second text `column`. Raises InvalidInput where it has no tokens at all."""
        if not ids:
            field = self.entry.format(column)
            raise InvalidInput(f"{field} and its partner have no tokens, not even special ones", field=field)
        return PairSequence(ids=array("i", ids), second_segment=second_segment, truncated=truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSequence:
    """Token ids of a pair, 4 bytes each. The second text begins at `second_segment`, 0 without token types."""

    ids: "array[int]"
    second_segment: int
    truncated: bool


JoinedPairs = Iterator[tuple[int, int, PairSequence] | None]
"""Pairs, each as the number of its second text, the number of its first text, and its tokens; None between slices."""


def check_text(cut: Truncation, limit: int, tokens: int, field: str, *, whole: bool) -> None:
    """Raises InputTooLong, naming the text `field`, where it is over its own `limit` and may not be cut.

    `whole`: whether it was read to its end, so that it has exactly `tokens` tokens.
    """
    if not cut.truncate:
        raise InputTooLong(
            f"{field} has {_count(tokens, limit, whole)} tokens, {cut.field} is {limit}; truncate would cut it",
            field=field,
        )


def _count(tokens: int, limit: int, whole: bool) -> str:
    return str(tokens) if whole else f"more than {limit}"
