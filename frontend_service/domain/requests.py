"""Requests: frozen, and valid as far as no model needs to be known; and their fields in errors by the names of an API.

Knows no API.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.vectors import (
    DataType,
    InputType,
    Layout,
    MultiVectors,
    OutputKind,
    ScoringMethod,
    TokenPooling,
    TruncationSide,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """A choice of the prompt before each text: a literal one, one of the model's by name or by what it is for, or by
    the kind of text.

    `task`: one of Jina's, such as `nl2code.query`.
    """

    literal: str | None = None
    name: str | None = None
    task: str | None = None
    input_type: InputType = InputType.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """A choice of what is done with texts over the limit. `side`: the end that is cut off; None: as the model has it.

    `max_tokens` lowers the model's limit; `field` is its name in errors. Above the model's limit it is an error, unless
    it is a `bound`, which then has no effect. Without `limited` a text may have any length: it is only shown.
    `truncate` None: the request does not say whether to cut; see `Limits.with_default`.
    """

    truncate: bool | None = None
    side: TruncationSide | None = None
    max_tokens: int | None = None
    field: str = "max_tokens"
    bound: bool = False
    limited: bool = True

    def within(self, second: "Truncation") -> "Truncation":
        """Both truncations at once: the lower of their limits, and a text is cut where either says so."""
        limits = [cut for cut in (self, second) if cut.max_tokens is not None]
        lower = min(limits, key=lambda cut: cut.max_tokens or 0, default=second)
        return replace(lower, truncate=self.truncate or second.truncate, side=self.side or second.side)


DEFAULT_PROMPT, DEFAULT_TRUNCATION = PromptChoice(), Truncation()
"""A request that says nothing: the model's own prompt for all texts, if it has one, and the model's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Texts to tokenise, at least one."""

    model: str = ""
    texts: tuple[str, ...]
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Lists of ids to turn back into texts, which are queries or documents where a model reads the two differently."""

    model: str = ""
    tokenized: tuple[Sequence[int], ...]
    skip_special_tokens: bool = False
    input_type: InputType = InputType.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPooling:
    """A choice to pool spans of texts, each into a vector of its own.

    `spans`: of each text, its spans from one character to the one before another; None: the texts are the chunks of one
    document (late chunking). `window_overlap`: how many tokens the windows of a document over the limit share; None: it
    is refused.
    """

    spans: tuple[tuple[tuple[int, int], ...], ...] | None = None
    window_overlap: int | None = None

    @property
    def field(self) -> str:
        """The field of a request that asks for this."""
        return "late_chunking" if self.spans is None else "spans"

    def __post_init__(self) -> None:
        if self.window_overlap is not None and self.window_overlap < 0:
            raise InvalidInput(f"window_overlap is {self.window_overlap}, must be at least 0", field="window_overlap")

    def check(self, texts: Sequence[str]) -> None:
        """Raises InvalidInput where spans are not those of the texts."""
        if self.spans is None:
            return
        if len(self.spans) != len(texts):
            counts = f"{len(self.spans)} and {len(texts)}"
            raise InvalidInput(f"spans must be empty or as many as texts: {counts}", field="spans")
        for index, (text, spans) in enumerate(zip(texts, self.spans, strict=True)):
            field, length = f"spans[{index}]", len(text)
            if not spans:
                raise InvalidInput(f"{field} has no spans; leave the text out", field=field)
            for number, (start, end) in enumerate(spans):
                if not 0 <= start < end <= length:
                    why = "has no characters" if start >= end else f"is not within the {length} characters of its text"
                    raise InvalidInput(f"{field}: span {number}, from {start} to {end}, {why}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts or token ids to embed; exactly one of the two is set."""

    model: str = ""
    texts: tuple[str, ...] = ()
    tokenized: tuple[Sequence[int], ...] = ()
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    outputs: tuple[OutputKind, ...] = ()
    dimensions: int | None = None
    normalize: bool | None = None
    data_type: DataType = DataType.FLOAT32
    return_token_ids: bool = False
    sparse_top_k: int | None = None
    pooling: TokenPooling | None = None
    span_pooling: SpanPooling | None = None

    @property
    def dense_rows(self) -> int:
        """How many dense vectors the reply has: one a text, or one a span."""
        spans = self.span_pooling.spans if self.span_pooling else None
        return sum(map(len, spans)) if spans else len(self.texts) or len(self.tokenized)

    def __post_init__(self) -> None:
        if self.texts and self.tokenized:
            raise InvalidInput("texts and tokenized are both given; exactly one may be", field="tokenized")
        if not self.texts and not self.tokenized:
            raise InvalidInput("texts is empty, and so is tokenized", field="texts")
        if self.tokenized and (self.prompt.literal is not None or self.prompt.name is not None):
            field = "prompt_name" if self.prompt.literal is None else "prompt"
            raise InvalidInput(f"token ids are fed as they are; {field} needs texts", field=field)
        for index, ids in enumerate(self.tokenized):
            if not ids:
                raise InvalidInput(f"tokenized[{index}] has no ids", field=f"tokenized[{index}]")
        if self.pooling and self.prompt.input_type is InputType.QUERY:
            raise InvalidInput("pool_factor is for documents, input_type is QUERY", field="pool_factor")
        if self.span_pooling:
            self._check_spans(self.span_pooling)

    def _check_spans(self, pooling: SpanPooling) -> None:
        """Raises InvalidInput for spans that are not those of the texts, and for what has no meaning beside them."""
        field = pooling.field
        if self.tokenized:
            raise InvalidInput(f"{field} needs texts: token ids have no characters", field=field)
        if self.cut.truncate:
            raise InvalidInput(
                f"{field} and truncate are both given: a part that is cut off would have no vector; window_overlap "
                "reads a long document in windows",
                field=field,
            )
        if self.prompt.input_type is InputType.QUERY:
            raise InvalidInput(f"{field} is for documents, input_type is QUERY", field=field)
        pooling.check(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """Texts to classify; with `pairs`, each together with its second text."""

    model: str = ""
    texts: tuple[str, ...]
    pairs: tuple[str, ...] = ()
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    normalize: bool | None = None

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
    """Texts whose tokens to classify; with `token_id` only the tokens of that id."""

    model: str = ""
    texts: tuple[str, ...]
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    token_id: int | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")


QUERY_CUT, DOCUMENT_CUT = Truncation(field="max_tokens_per_query"), Truncation(field="max_tokens_per_document")


class ScoreNormalization(Enum):
    """What is done to make scores comparable; None: what the model's files say.

    `activate`, for cross-encoders: whether logits are activated. `normalize`, for methods that compare vectors: whether
    rows get unit length, and products of late interaction are averaged instead of added. `raw_token_rows`, for late
    interaction: token rows keep the length that the model gives them, whatever its files say. Scores of a listwise
    reranker are cosines, whatever is asked for.
    """

    BY_MODEL = (None, None)
    FULL = (True, True)
    NONE = (False, False)
    ACTIVATED = (True, None)
    LOGITS = (False, None)
    LOGITS_AND_RAW_ROWS = (False, None, True)

    def __init__(self, activate: bool | None, normalize: bool | None, raw_token_rows: bool = False) -> None:
        self.activate, self.normalize, self.raw_token_rows = activate, normalize, raw_token_rows

    @classmethod
    def of(cls, normalize: bool | None) -> "ScoreNormalization":
        """All of it, none of it, or what the model's files say."""
        return cls.BY_MODEL if normalize is None else cls.FULL if normalize else cls.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Queries and documents to compare. `query_entry` is what errors call one of the queries.

    `query_cut` and `document_cut` are for either text alone. `sequence_cut` is for what the model reads in one piece: a
    pair of a cross-encoder, else a query or a document, for which it holds beside the other two. None: only the model's
    limit holds; a pair over it is cut if `document_cut` cuts. `part_of_list`: the documents are some of a list that the
    caller sends in several requests. `pooling`: how the token rows of documents become fewer; None: as the model says.
    """

    model: str = ""
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    layout: Layout = Layout.MATRIX
    method: ScoringMethod | None = None
    normalization: ScoreNormalization = ScoreNormalization.BY_MODEL
    instruction: str | None = None
    query_cut: Truncation = QUERY_CUT
    document_cut: Truncation = DOCUMENT_CUT
    sequence_cut: Truncation | None = None
    query_entry: str = "queries[{}]"
    weights: HybridWeights | None = None
    explain: bool = False
    part_of_list: bool = False
    pooling: TokenPooling | None = None

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
class RerankRequest(ScoreRequest):
    """A query and documents to put in order. `top_n`: how many of these the reply shows, None for all."""

    query_entry: str = "query"
    top_n: int | None = None
    return_documents: bool = False

    def __post_init__(self) -> None:
        ScoreRequest.__post_init__(self)
        assert len(self.queries) == 1
        if self.top_n is not None and self.top_n < 1:
            raise InvalidInput(f"top_n is {self.top_n}, must be at least 1", field="top_n")

    @property
    def shown_count(self) -> int:
        """The number of documents that the reply shows."""
        return min(self.top_n or len(self.documents), len(self.documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSimRequest:
    """Document vectors to compare with query vectors or with query texts; exactly one of the two is set."""

    queries: MultiVectors | None = None
    documents: MultiVectors
    layout: Layout = Layout.MATRIX
    normalize: bool | None = None
    explain: bool = False
    query_texts: tuple[str, ...] = ()
    model: str = ""
    instruction: str | None = None
    query_cut: Truncation = QUERY_CUT

    @property
    def query_count(self) -> int:
        """The number of queries."""
        return len(self.query_texts if self.queries is None else self.queries.lengths)

    def similarities(self, query_rows: Sequence[int]) -> int:
        """The number of products of a query row with a document row. `query_rows`: rows of each query."""
        if self.layout is Layout.PAIRS:
            return sum(map(operator.mul, query_rows, self.documents.lengths))
        return sum(query_rows) * self.documents.rows

    def matches(self, query_rows: Sequence[int]) -> int:
        """The number of winners in an explanation: for each score, one for each row of its query."""
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


FieldNames = Mapping[str, str]
"""Our names of fields, each with that of an API.

`texts[]` is any entry of a list: `[]` in its new name is the entry's place, and a new name without `[]` has none. An
entry without a name of its own is named after its list, and `texts[0]` names a single one.
"""
FIELD = re.compile(r"(\w+)(\[\d+\])?")


def field_as(field: str, names: FieldNames) -> str:
    """A field such as `texts[3]` as an API names it, such as `input[3]`.

    Fields that `names` lacks stay, and so does what is within an entry: only the caller's own form has that.
    """
    match = FIELD.fullmatch(field)
    if match is None or field in names:
        return names.get(field, field)
    name, place = match[1], match[2] or ""
    if place and f"{name}[]" in names:
        return names[f"{name}[]"].replace("[]", place)
    return names.get(name, name) + place
