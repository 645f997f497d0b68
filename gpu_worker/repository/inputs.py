"""The inputs that a model's own tokenizer class makes of texts, and the rule that gives tokens their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.texts import Counts, Frame, Ids, TokenTypes
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TEXTS = ("a", "", "what is it?", "It has several words, and 333 more: of them some are Capitals.")
PAIRS = (("a", "b"), ("what is it?", "It has several words, and 333 more."), ("one and two, three", "a"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInputs:
    """Inputs [L] by name that transformers' tokenizer makes of a text or a pair.

    The second text of a pair begins at `second_segment`, the first token of type 1, as in the frontend.
    """

    inputs: Mapping[str, Counts]
    second_segment: int = 0

    @property
    def ids(self) -> Ids:
        """Token ids [L]."""
        return self.inputs[IDS].astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInputs:
    """Results of trying a tokenizer on a few texts and pairs: `texts`, `pairs`, and the rule of token types.

    `types` is None where the tokenizer gives none. `types_hold_for_pairs`: the rule holds for pairs too, once the start
    of the second text is known.
    """

    types: TokenTypes | None
    texts: tuple[WrittenInputs, ...] = ()
    pairs: tuple[WrittenInputs, ...] = ()
    types_hold_for_pairs: bool = True


PLAIN = TokenizerInputs(types=TokenTypes())
"""Inputs of a tokenizer whose types mark the second text of a pair and nothing else."""

NONE = TokenizerInputs(types=None)
"""Inputs of a tokenizer that gives token ids alone."""


def read(tokenizer: Any) -> TokenizerInputs:
    """Tries transformers' tokenizer. Raises ModelRefused where types do not follow from special tokens' places."""
    try:
        texts = [tokenizer(text) for text in TEXTS]
        pairs = [tokenizer(*pair) for pair in PAIRS] if TYPES in texts[0] else []
        frames = _frame(texts), _frame(pairs)
    except Exception as error:  # any class may fail: some need boxes or nodes beside words
        raise ModelRefused(
            f"its tokenizer ({type(tokenizer).__name__}) reads no text by itself: {first_line(error)}"
        ) from error
    written, paired = (
        tuple(_written(encoding) for encoding in encodings if len(encoding[IDS])) for encodings in (texts, pairs)
    )
    if TYPES not in texts[0]:
        return TokenizerInputs(types=None, texts=written)
    types = TokenTypes(text=frames[0], pair=frames[1])
    if not all(_holds(types, text) for text in written):
        raise ModelRefused(f"{type(tokenizer).__name__} gives token types that do not follow from its special tokens")
    holds = all(_holds(types, pair) for pair in paired)
    return TokenizerInputs(types=types, texts=written, pairs=paired if holds else (), types_hold_for_pairs=holds)


def _written(encoding: Any) -> WrittenInputs:
    inputs = {name: np.array(values, dtype=np.int64) for name, values in encoding.items()}
    if TYPES not in inputs or 1 not in encoding.sequence_ids(0):
        return WrittenInputs(inputs=inputs)
    second = np.flatnonzero(inputs[TYPES] == 1)
    return WrittenInputs(inputs=inputs, second_segment=int(second[0]) if len(second) else 0)


def _frame(encodings: list[Any]) -> Frame:
    """Finds the special tokens around the longest of these texts; none where no text has a token of its body."""
    if not encodings or TYPES not in encodings[0]:
        return Frame()
    longest = max(encodings, key=lambda encoding: len(encoding[IDS]))
    special = np.array([side is None for side in longest.sequence_ids(0)])
    body = np.flatnonzero(~special)
    if not len(body):
        return Frame()
    tokens = list(zip(longest[IDS], longest[TYPES], strict=True))
    return Frame(before=tuple(tokens[: body[0]]), body=tokens[body[0]][1], after=tuple(tokens[body[-1] + 1 :]))


def _holds(types: TokenTypes, written: WrittenInputs) -> bool:
    """Whether the rule gives the types that the tokenizer gave."""
    ids: npt.NDArray[np.int32] = written.ids
    ends, second = np.array([0, len(ids)]), np.array([written.second_segment])
    by_rule = types.of(ids, ends, second)
    return bool((written.inputs[TYPES] == (0 if by_rule is None else by_rule)).all())
