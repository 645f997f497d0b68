"""The model card: what a model is and can do, as both services know it."""

import re
from dataclasses import dataclass, field, replace

from shared.vectors import (
    Activation,
    InputType,
    OutputKind,
    QueryExpansion,
    ScoringMethod,
    Task,
    TokenPooling,
    TruncationSide,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """Rules by which a late-interaction model reads texts; the fields are those of `selvage.v1.LateInteraction`.

    Lengths are in tokens, marker and special tokens included. Its markers are the prompts "query" and "document".
    """

    query_length: int
    document_length: int
    query_expansion: QueryExpansion = QueryExpansion.NONE
    expansion_length: int = 0
    expansion_id: int = 0
    attend_to_expansion: bool = False
    skiplist: tuple[int, ...] = ()
    skip_in_queries: bool = False
    skip_in_documents: bool = True

    def skips(self, side: InputType) -> bool:
        """Whether the skiplist counts for a text; one that is neither query nor document counts as a document."""
        return self.skip_in_queries if side is InputType.QUERY else self.skip_in_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRoute:
    """The way of queries of inference-free SPLADE: a table has a weight for each of their tokens.

    The fields are those of `selvage.v1.QueryRoute`, without the ones that are the same for every table.
    """

    default_input_type: InputType
    max_tokens: int
    vocabulary_size: int
    truncation_side: TruncationSide
    special_ids: tuple[int, ...] = ()
    table_digest: str = ""


PLACE = re.compile(r"\{(\w+)\}")
"""A place in a text of `Listwise` or in the template of a pair or a message, with its name."""
SPLIT = "{split}"
"""Where the template of a pair is cut for the tokenizer, so that no token spans the place."""


def message_of(template: str, text: str, prompt: str = "") -> str:
    """Writes a text, and its prompt if it has one, into a template of messages; braces inside of them mean nothing."""
    texts = {"text": text, "stripped_text": text.strip()}
    if prompt:
        texts |= {"prompt": prompt, "stripped_prompt": prompt.strip()}
    return PLACE.sub(lambda place: texts.get(place[1], place[0]), template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listwise:
    """How a listwise reranker reads texts; the fields are those of `selvage.v1.Listwise`."""

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


YES = ("yes",)
"""The labels of a yes/no reranker, by which frontends know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Everything that clients and frontends know of a model; the fields are those of `selvage.v1.ModelCard`."""

    id: str
    family: str
    outputs: tuple[OutputKind, ...]
    methods: tuple[ScoringMethod, ...]
    default_method: ScoringMethod | None
    pooling: str
    dimensions: int
    multi_vector_dimensions: int
    normalizes: bool
    max_tokens: int
    vocabulary_size: int
    dtype: str
    device: str
    attention: str
    linear: str
    fingerprint: str
    allowed_dimensions: tuple[int, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    include_prompt: bool = True
    special_tokens: dict[str, int] = field(default_factory=dict)
    special_ids: tuple[int, ...] = ()
    notice: str = ""
    tasks: tuple[Task, ...] = (Task.EMBED, Task.RERANK)
    multi_vector_head: bool = False
    sparse_head: str = ""
    averages_late_interaction: bool = False
    labels: tuple[str, ...] = ()
    activation: Activation = Activation.NONE
    pair_template: str = ""
    instructed_pair_template: str = ""
    weight_bytes: int = 0
    late_interaction: LateInteraction | None = None
    normalizes_multi_vectors: bool = True
    max_sim: str = ""
    truncation_side: TruncationSide = TruncationSide.RIGHT
    aliases: tuple[str, ...] = ()
    formats: str = ""
    chunk_tokens: int = 0
    cache_tokens: int = 0
    whole_texts: str = ""
    limited_by: str = ""
    query_route: QueryRoute | None = None
    pools_spans: bool = False
    listwise: Listwise | None = None
    bitwise_invariant: bool = False
    token_pooling: TokenPooling | None = None
    task_models: dict[str, str] = field(default_factory=dict)
    message_templates: dict[str, str] = field(default_factory=dict)
    prompted_message_templates: dict[str, str] = field(default_factory=dict)

    @property
    def dense_width(self) -> int:
        """Dimensions of a dense row on the link: of Embed's vectors, or of those that a listwise reranker compares."""
        return self.listwise.dimensions if self.listwise else self.dimensions

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may use; replies use the first."""
        return (self.id, *self.aliases)

    @property
    def asks_about_pairs(self) -> bool:
        """Whether it classifies pairs alone: a yes/no reranker, which has nothing to ask about a single text."""
        return bool(self.pair_template) and self.labels == YES

    @property
    def queries_only(self) -> bool:
        """Whether it reads queries alone, since its documents are images (ColQwen2): other texts have no template."""
        return bool(self.message_templates) and "" not in self.message_templates

    def pooling_of(self, wanted: TokenPooling | None, normalize: bool | None) -> TokenPooling | None:
        """How token rows of documents are pooled where a request wants this, or None: as the files say. `normalize`:
        whether it wants rows of unit length. Returns None for no pooling."""
        pooling = wanted or self.token_pooling
        if pooling is None or pooling.pool_factor == 1:
            return None
        return pooling if normalize is None else replace(pooling, normalize=normalize)

    def of_queries(self, route: QueryRoute) -> "ModelCard":
        """The card as it holds for queries that go their own way, `query_route`."""
        return replace(
            self,
            max_tokens=route.max_tokens,
            vocabulary_size=route.vocabulary_size,
            truncation_side=route.truncation_side,
            special_ids=route.special_ids,
            query_route=None,
        )
