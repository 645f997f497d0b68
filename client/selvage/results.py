"""What calls of a client return, apart from arrays. Knows no messages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Several outputs of the same texts, with the numbers of tokens. Outputs that were not requested are None.

    - `token_counts`: [texts] int32, the tokens that were computed for each text, or that belong to each chunk.
    - `truncated`: [texts] bool, whether the text was cut.
    - `dense`: [texts, dimensions]; with `spans` [spans of all texts, dimensions].
    - `dense_scales`: [texts] or [spans] float32, for int8 only: a value is its number x the scale of its row.
    - `sparse`: a dict for each text, or one matrix, as requested.
    - `multi_vector`: an array [rows, dimensions] for each text.
    - `multi_vector_scales`: an array [rows] float32 for each text, for int8 only.
    - `token_ids`: an array [rows] int32 for each text, where requested.
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
    """A query token and the document token that matches it best, at a position that counts tokens from 0."""

    query_token: str
    document_token: str
    document_position: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """One document of a ranking.

    `index`: its place in the list of documents. `score`: larger is better; -1e9 for a document without a token that
    can be scored. `document`: its text, where requested. `explanation`: a match for each query token, where requested.
    """

    index: int
    score: float
    document: str | None = None
    explanation: tuple[TokenMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """Scores of labels.

    `scores`: [texts, labels] float32, or [labels] for a single text. `labels`: the names of the last axis.
    """

    labels: tuple[str, ...]
    scores: Array

    @property
    def best(self) -> Any:
        """The label with the largest score: a string for a single text, otherwise a list.

        The first of them where scores are equal, as those of large logits are after an activation.
        """
        places = np.argmax(self.scores, axis=-1)
        return self.labels[int(places)] if self.scores.ndim == 1 else [self.labels[place] for place in places]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenClasses:
    """The scored tokens of one text.

    `scores`: [tokens, labels] float32. `token_ids`: [tokens] int32. `starts`, `ends`: [tokens] int32, where each token
    begins and ends in the text with its prompt, in characters; 0 for special tokens.
    """

    labels: tuple[str, ...]
    scores: Array
    token_ids: Array
    starts: Array
    ends: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokens:
    """One text as the model sees it.

    - `ids`: [tokens] int32. `tokens`: the same tokens as the vocabulary writes them.
    - `special`: [tokens] bool, whether the tokenizer added the token.
    - `starts`, `ends`: [tokens] int32, where each token begins and ends in the text with its prompt, in characters.
    - `truncated`: whether the text was cut.
    - `expansion_tokens`: how many tokens at the end were added by query expansion.
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
