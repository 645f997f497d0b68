"""The size of a job's result in bytes, before it is computed. Knows no API and no worker."""

from frontend_service.domain.limits import LINK_MATCH_BYTES
from shared.card import ModelCard
from shared.jobs import Classify, Encode, MaxSim, RaggedTokens, Score, TokenRanges, Work
from shared.vectors import OutputKind

SCORE_BYTES = 4
"""Bytes of a score or a logit."""
SPARSE_PAIR_BYTES = 8
"""Bytes of a sparse vector's entry: a vocabulary id and its weight."""


def result_bytes(work: Work, tokens: RaggedTokens, card: ModelCard, ranges: TokenRanges | None = None) -> int:
    """Bytes that a result will have at least, without its envelope. `ranges`: those of the job, if it has any.

    Sparse vectors without `sparse_top_k` count as nothing: nobody knows how long they will be.
    """
    match work:
        case Encode():
            return _vector_bytes(work, tokens, card, len(tokens) if ranges is None else len(ranges))
        case Score():
            rows, columns = work.layout.shape(work.queries, len(tokens) - work.queries)
            matches = columns * tokens.lengths[0] if work.explain else 0
            return rows * columns * SCORE_BYTES + matches * LINK_MATCH_BYTES
        case MaxSim():
            queries = tokens.lengths if work.queries is None else work.queries.lengths
            rows, columns = work.layout.shape(len(queries), len(work.documents.lengths))
            matches = sum(queries) * columns if work.explain else 0
            return rows * columns * SCORE_BYTES + matches * LINK_MATCH_BYTES
        case Classify():
            return len(card.labels) * SCORE_BYTES * (tokens.total if work.tokens else len(tokens))


def _vector_bytes(work: Encode, tokens: RaggedTokens, card: ModelCard, dense_rows: int) -> int:
    kind, total = work.data_type, 0
    if OutputKind.DENSE in work.outputs:
        total += dense_rows * (kind.row_bytes(work.dimensions or card.dense_width) + kind.scale_bytes)
    if OutputKind.MULTI_VECTOR in work.outputs:
        width = work.dimensions or card.multi_vector_dimensions
        total += tokens.total * (kind.row_bytes(width) + kind.scale_bytes)
    if OutputKind.SPARSE in work.outputs:
        weights = min(work.sparse_top_k, card.vocabulary_size)  # a text has no more, whatever a request names
        total += len(tokens) * weights * SPARSE_PAIR_BYTES
    return total
