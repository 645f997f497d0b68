"""What a model's own tokenizer class gives for texts: every input by name, and the rule by which tokens have types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.token_types import Counts, Frame, Ids, TokenTypes
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TEXTS = ("a", "", "what is it?", "It has several words, and 333 more: of them some are Capitals.")
PAIRS = (("a", "b"), ("what is it?", "It has several words, and 333 more."), ("one and two, three", "a"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInputs:
    """A text or a pair as transformers' tokenizer gives it: `inputs` [L] by name.

    Of a pair, the second text begins at `second_segment` as the frontend tells it: at the first token of type 1.
    """

    inputs: Mapping[str, Counts]
    second_segment: int = 0

    @property
    def ids(self) -> Ids:
        """[L]."""
        return self.inputs[IDS].astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInputs:
    """`types`: the rule of token types, None where the tokenizer gives none; `texts`, `pairs`: what it makes of a few.

    `pairs_told`: the rule holds for pairs too, given where the second text begins.
    """

    types: TokenTypes | None
    texts: tuple[WrittenInputs, ...] = ()
    pairs: tuple[WrittenInputs, ...] = ()
    types_hold_for_pairs: bool = True


PLAIN = TokenizerInputs(types=TokenTypes())
"""Of a tokenizer that tells the second text of a pair, and nothing else."""


def read(tokenizer: Any) -> TokenizerInputs:
    """Asks transformers' tokenizer. Raises ModelRefused where types do not follow from where special tokens stand."""
    try:
        texts = [tokenizer(text) for text in TEXTS]
        pairs = [tokenizer(*pair) for pair in PAIRS] if TYPES in texts[0] else []
        frames = _frame(texts), _frame(pairs)
    except Exception as error:  # of foreign classes: some want boxes or nodes beside words
        raise ModelRefused(
            f"its tokenizer ({type(tokenizer).__name__}) reads no text by itself: {first_line(error)}"
        ) from error
    written, paired = (tuple(_written(each) for each in some if len(each[IDS])) for some in (texts, pairs))
    if TYPES not in texts[0]:
        return TokenizerInputs(types=None, texts=written)
    types = TokenTypes(text=frames[0], pair=frames[1])
    if not all(_holds(types, each) for each in written):
        raise ModelRefused(f"{type(tokenizer).__name__} gives token types that do not follow from its special tokens")
    told = all(_holds(types, each) for each in paired)
    return TokenizerInputs(types=types, texts=written, pairs=paired if told else (), types_hold_for_pairs=told)


def _written(encoding: Any) -> WrittenInputs:
    inputs = {name: np.array(each, dtype=np.int64) for name, each in encoding.items()}
    if TYPES not in inputs or 1 not in encoding.sequence_ids(0):
        return WrittenInputs(inputs=inputs)
    of_the_second = np.flatnonzero(inputs[TYPES] == 1)
    return WrittenInputs(inputs=inputs, second_segment=int(of_the_second[0]) if len(of_the_second) else 0)


def _frame(encodings: list[Any]) -> Frame:
    """What stands around the longest of them; plain where none has a token of its own."""
    if not encodings or TYPES not in encodings[0]:
        return Frame()
    longest = max(encodings, key=lambda encoding: len(encoding[IDS]))
    special = np.array([side is None for side in longest.sequence_ids(0)])
    own = np.flatnonzero(~special)
    if not len(own):
        return Frame()
    tokens = list(zip(longest[IDS], longest[TYPES], strict=True))
    return Frame(before=tuple(tokens[: own[0]]), body=tokens[own[0]][1], after=tuple(tokens[own[-1] + 1 :]))


def _holds(types: TokenTypes, written: WrittenInputs) -> bool:
    """Whether the rule gives what the tokenizer gave."""
    ids: npt.NDArray[np.int32] = written.ids
    ends, second = np.array([0, len(ids)]), np.array([written.second_segment])
    found = types.of(ids, ends, second)
    return bool((written.inputs[TYPES] == (0 if found is None else found)).all())
