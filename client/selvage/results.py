"""What calls of the client return, beside arrays. Knows no messages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Several outputs of the same texts, with what they cost.

    `dense`: [texts, dimensions]; `dense_scales`: [texts] float32, of int8 only: a value is its number x the scale of
    its row. `sparse`: a dict or a matrix, as asked for. `multi_vector`: [rows, dimensions] each; `multi_vector_scales`:
    [rows] float32 each, of int8 only; `token_ids`: [rows] int32 each, where asked for. What was not asked for is None.
    `token_counts`: [texts] int32, tokens computed of each; `truncated`: [texts] bool, whether it was cut.
    """

    model: str
    token_counts: Array
    truncated: Array
    dense: Array | None = None
    dense_scales: Array | None = None
    sparse: Any = None
    multi_vector: list[Array] | None = None
    multi_vector_scales: list[Array] | None = None
    token_ids: list[Array] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMatch:
    """For one query token, the document token that matched it best, at a position in tokens from 0."""

    query_token: str
    document_token: str
    document_position: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """One document of a ranking.

    `index`: its place in the documents that were given. `score`: larger is better; -1e9 for a document without a
    scoreable token. `document`: its text, where asked for. `explanation`: a match a query token, where asked for.
    """

    index: int
    score: float
    document: str | None = None
    explanation: tuple[TokenMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """`scores`: [texts, labels] float32, or [labels] of a single text; `labels` say what the last axis means."""

    labels: tuple[str, ...]
    scores: Array

    @property
    def best(self) -> Any:
        """The label of the largest score: one of a single text, else a list."""
        chosen = np.argmax(self.scores, axis=-1)
        return self.labels[int(chosen)] if self.scores.ndim == 1 else [self.labels[each] for each in chosen]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenClasses:
    """The scored tokens of one text.

    `scores`: [tokens, labels] float32. `token_ids`, `starts`, `ends`: [tokens] int32; where each token begins and ends
    in its text with its prompt, in characters, 0 for special tokens.
    """

    labels: tuple[str, ...]
    scores: Array
    token_ids: Array
    starts: Array
    ends: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokens:
    """One text as the model sees it.

    `ids`: [tokens] int32; `tokens`: the same as the vocabulary writes them; `special`: [tokens] bool, whether the
    tokenizer added it. `starts`, `ends`: [tokens] int32, in characters of the text with its prompt. `truncated`:
    whether the text was cut. `expansion_tokens`: how many at the end were added by query expansion.
    """

    ids: Array
    tokens: tuple[str, ...]
    special: Array
    starts: Array
    ends: Array
    truncated: bool
    expansion_tokens: int

    def __len__(self) -> int:
        return len(self.ids)
