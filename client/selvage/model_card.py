"""The card of a model. Each field means what its comment in model.proto says. Knows no messages."""

from collections.abc import Mapping
from dataclasses import dataclass


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
