"""What calls of a client return, apart from arrays. Knows no messages.

Each field of a card means what its comment in model.proto says.
"""

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """How a late-interaction model reads texts. `query_expansion`: "fixed", "min", or "" for none."""

    query_length: int
    document_length: int
    query_expansion: str
    expansion_length: int
    expansion_id: int
    attend_to_expansion: bool
    skiplist: tuple[int, ...]
    skip_in_queries: bool
    skip_in_documents: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRoute:
    """How queries of inference-free SPLADE are read, by a table. Fields that the card has too mean the same here, of
    queries. `default_input_type` is what texts are that are neither; empty: a call must say it.
    `table_digest`: empty where queries go through the worker; else the frontend looks them up in this table."""

    default_input_type: str
    family: str
    pooling: str
    attention: str
    max_tokens: int
    vocabulary_size: int
    include_prompt: bool
    truncation_side: str
    sparse_head: str
    table_digest: str
    special_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listwise:
    """How a listwise reranker reads a query and documents as one text, in blocks of at most `block_documents`."""

    query_length: int
    document_length: int
    block_documents: int
    dimensions: int
    opening: str
    instruction: str
    document: str
    closing: str
    document_marker: str
    document_marker_id: int
    query_marker: str
    query_marker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPooling:
    """How the token rows of documents become fewer unless a call says otherwise: about 1 / `pool_factor` of them are
    left, the first `protected_tokens` as they are. `normalize`: whether these get unit length."""

    pool_factor: float
    protected_tokens: int
    normalize: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model is and how it reads texts.

    Choices have the names that calls take: `outputs` such as "dense", `methods` such as "late_interaction". Lengths are
    in tokens, `weight_bytes` in bytes. The `fingerprint` changes with everything that changes a vector.
    """

    id: str
    family: str
    outputs: tuple[str, ...]
    methods: tuple[str, ...]
    default_method: str
    pooling: str
    dimensions: int
    allowed_dimensions: tuple[int, ...]
    multi_vector_dimensions: int
    normalizes: bool
    prompts: Mapping[str, str]
    default_prompt_name: str
    include_prompt: bool
    max_tokens: int
    vocabulary_size: int
    dtype: str
    device: str
    attention: str
    linear: str
    fingerprint: str
    special_tokens: Mapping[str, int]
    notice: str
    tasks: tuple[str, ...]
    multi_vector_head: bool
    sparse_head: str
    averages_late_interaction: bool
    labels: tuple[str, ...]
    activation: str
    pair_template: str
    instructed_pair_template: str
    weight_bytes: int
    late_interaction: LateInteraction | None
    normalizes_multi_vectors: bool
    max_sim: str
    truncation_side: str
    aliases: tuple[str, ...]
    formats: str
    chunk_tokens: int
    cache_tokens: int
    whole_texts: str
    limited_by: str
    query_route: QueryRoute | None
    pools_spans: bool
    listwise: Listwise | None
    special_ids: tuple[int, ...]
    bitwise_invariant: bool
    token_pooling: TokenPooling | None
    task_models: Mapping[str, str]
    message_templates: Mapping[str, str]
    prompted_message_templates: Mapping[str, str]
