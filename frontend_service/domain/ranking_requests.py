"""Requests to compare queries with documents: frozen, and valid as far as no model needs to be known. Knows no API."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from frontend_service.domain.requests import Truncation
from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.vectors import Layout, MultiVectors, ScoringMethod

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
    caller sends in several requests.
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
