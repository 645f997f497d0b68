"""Requests of callers to compare: frozen, and free of what makes no sense for any model. Knows no door and no model."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_service.domain.requests import Truncation
from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.vectors import Layout, MultiVectors, ScoringMethod

QUERY_CUT, DOCUMENT_CUT = Truncation(field="max_tokens_per_query"), Truncation(field="max_tokens_per_document")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Queries and documents to compare. `query_entry` is what errors call one of the queries.

    `query_cut` and `document_cut` are for the two sides, `sequence_cut` for each sequence that the model reads: a pair
    of a cross-encoder, a text where vectors are compared; None: as documents are cut, at the model's limit.
    `activated`: of a cross-encoder alone, whether scores are activated or logits; None: as `normalize` says.
    `raw_rows`: of late interaction alone, token rows as the model gives them, whatever length they have.
    """

    model: str = ""
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    layout: Layout = Layout.MATRIX
    method: ScoringMethod | None = None
    normalize: bool | None = None
    instruction: str | None = None
    query_cut: Truncation = QUERY_CUT
    document_cut: Truncation = DOCUMENT_CUT
    sequence_cut: Truncation | None = None
    query_entry: str = "queries[{}]"
    weights: HybridWeights | None = None
    explain: bool = False
    activated: bool | None = None
    raw_rows: bool = False

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
    """A query and its documents, to be put in order. `top_n`: how many of them to tell, None for all."""

    query_entry: str = "query"
    top_n: int | None = None
    return_documents: bool = False

    def __post_init__(self) -> None:
        ScoreRequest.__post_init__(self)
        assert len(self.queries) == 1
        if self.top_n is not None and self.top_n < 1:
            raise InvalidInput(f"top_n is {self.top_n}, must be at least 1", field="top_n")

    @property
    def shown(self) -> int:
        """Documents that the reply tells of."""
        return min(self.top_n or len(self.documents), len(self.documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSimRequest:
    """Document vectors to compare with query vectors, or with texts; exactly one of the two."""

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
