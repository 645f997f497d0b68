"""What callers ask for: frozen, and free of what makes no sense for any model. Knows no protobuf and no model."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, ScoringMethod, TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """What to put before each text: a literal prompt, one by name, or by what the text is."""

    literal: str | None = None
    name: str | None = None
    input_type: InputType = InputType.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What to do with texts over the limit. `side` None is the model's own.

    `max_tokens` lowers the model's limit; `field` is its name in errors.
    """

    truncate: bool = False
    side: TruncationSide | None = None
    max_tokens: int | None = None
    field: str = "max_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Texts to tokenise; at least one."""

    model: str
    texts: tuple[str, ...]
    prompt: PromptChoice
    cut: Cut

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How the token rows of each document become fewer: 1 / `factor` of them, but for the first `protected`."""

    factor: float
    protected: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.factor < float("inf"):
            raise InvalidInput(f"pool_factor is {self.factor:g}, must be a number of at least 1", field="pool_factor")
        if self.protected < 0:
            raise InvalidInput(f"protected_tokens is {self.protected}, must be at least 0", field="protected_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts, or token ids, to embed; exactly one of the two."""

    model: str
    texts: tuple[str, ...]
    tokenized: tuple[tuple[int, ...], ...]
    prompt: PromptChoice
    cut: Cut
    outputs: tuple[OutputKind, ...]
    dimensions: int | None
    normalize: bool | None
    data_type: DataType
    return_token_ids: bool
    sparse_top_k: int | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        if self.texts and self.tokenized:
            raise InvalidInput("texts and tokenized are both given; exactly one may be", field="tokenized")
        if not self.texts and not self.tokenized:
            raise InvalidInput("texts is empty, and so is tokenized", field="texts")
        if self.tokenized and (self.prompt.literal is not None or self.prompt.name is not None):
            raise InvalidInput("token ids are fed as they are; a prompt needs texts", field="prompt")
        for index, ids in enumerate(self.tokenized):
            if not ids:
                raise InvalidInput(f"tokenized[{index}] has no ids", field=f"tokenized[{index}]")
        if self.pooling and self.return_token_ids:
            raise InvalidInput("return_token_ids and pool_factor are both given: a mean has no id", field="pool_factor")
        if self.pooling and self.prompt.input_type is InputType.QUERY:
            raise InvalidInput("pool_factor is for documents, input_type is QUERY", field="pool_factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Queries and documents to compare. `query_entry` is what errors call one of the queries."""

    model: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    layout: Layout
    method: ScoringMethod | None
    normalize: bool | None
    instruction: str | None
    query_cut: Cut
    document_cut: Cut
    query_entry: str = "queries[{}]"
    weights: HybridWeights | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        for field, texts in (("queries", self.queries), ("documents", self.documents)):
            if not texts:
                raise InvalidInput(f"{field} is empty", field=field)
        if self.layout is Layout.PAIRS and len(self.queries) != len(self.documents):
            raise InvalidInput(
                f"pairs need as many documents as queries: {len(self.queries)} and {len(self.documents)}",
                field="documents",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """Texts, or pairs of texts, to classify."""

    model: str
    texts: tuple[str, ...]
    pairs: tuple[str, ...]
    prompt: PromptChoice
    cut: Cut
    normalize: bool | None

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")
        if self.pairs and len(self.pairs) != len(self.texts):
            raise InvalidInput(
                f"text_pairs must be empty or as many as texts: {len(self.pairs)} and {len(self.texts)}",
                field="text_pairs",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTokensRequest:
    """Texts whose tokens are to be classified; with `token_id` only the tokens of that id."""

    model: str
    texts: tuple[str, ...]
    prompt: PromptChoice
    cut: Cut
    token_id: int | None
    normalize: bool | None

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSimRequest:
    """Document vectors to compare with query vectors, or with texts; exactly one of the two."""

    queries: MultiVectors | None
    documents: MultiVectors
    layout: Layout
    normalize: bool | None
    explain: bool = False
    query_texts: tuple[str, ...] = ()
    model: str = ""
    instruction: str | None = None
    query_cut: Cut = Cut()

    @property
    def query_count(self) -> int:
        """How many queries."""
        return len(self.query_texts if self.queries is None else self.queries.lengths)

    def similarities(self, query_rows: Sequence[int]) -> int:
        """Products of a query row with a document row."""
        if self.layout is Layout.PAIRS:
            return sum(map(operator.mul, query_rows, self.documents.lengths))
        return sum(query_rows) * self.documents.rows

    def matches(self, query_rows: Sequence[int]) -> int:
        """Winners that an explanation has: one a score and row of its query."""
        return sum(query_rows) * (1 if self.layout is Layout.PAIRS else len(self.documents.lengths))

    def __post_init__(self) -> None:
        if self.queries is not None and self.query_texts:
            raise InvalidInput("queries and query_texts are both given; exactly one may be", field="query_texts")
        if not self.query_count:
            raise InvalidInput("queries is empty, and so is query_texts", field="queries.lengths")
        if not self.documents.lengths:
            raise InvalidInput("documents is empty", field="documents.lengths")
        if self.layout is Layout.PAIRS and self.query_count != len(self.documents.lengths):
            raise InvalidInput("pairs need as many documents as queries", field="documents.lengths")
