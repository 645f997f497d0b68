"""How many bytes a result will have."""

import pytest
from fakes import card

from frontend_service.domain.limits import LINK_MATCH_BYTES, SCORE_BYTES, SPARSE_ENTRY_BYTES, result_bytes
from shared.jobs import NO_TOKENS, Encode, MaxSim, RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, OutputKind


@pytest.mark.parametrize("top_k", [1_000, 2_000_000_000])
def test_a_sparse_vector_has_no_more_weights_than_the_vocabulary(top_k: int) -> None:
    """Or one request would reserve gigabytes, and others would be refused until it is answered."""
    sparse = frozenset({OutputKind.SPARSE})
    work = Encode(outputs=sparse, normalize=True, normalize_tokens=True, sparse_top_k=top_k)
    tokens = RaggedTokens.of([[1, 2], [3]])
    assert result_bytes(work, tokens, card(vocabulary_size=100)) == 2 * 100 * SPARSE_ENTRY_BYTES


def rows(*lengths: int) -> MultiVectors:
    """Binary rows of eight dimensions, a byte each."""
    data_type = DataType.BINARY
    return MultiVectors(data_type=data_type, dimensions=8, lengths=lengths, data=b"1" * sum(lengths), scales=b"")


@pytest.mark.parametrize(
    ("layout", "queries", "documents", "scores", "winners"),
    [
        (Layout.MATRIX, (3,), (2, 2, 2, 2), 4, 3 * 4),
        (Layout.MATRIX, (3, 2), (2, 2, 2, 2), 8, 5 * 4),
        (Layout.PAIRS, (3,), (2,), 1, 3),
        (Layout.PAIRS, (3, 2), (2, 2), 2, 5),
    ],
)
def test_an_explained_maxsim_has_a_winner_for_each_score_and_query_row(
    layout: Layout, queries: tuple[int, ...], documents: tuple[int, ...], scores: int, winners: int
) -> None:
    work = MaxSim(
        queries=rows(*queries),
        documents=rows(*documents),
        layout=layout,
        unit_rows=False,
        unit_queries=False,
        mean=False,
        explain=True,
    )
    assert result_bytes(work, NO_TOKENS, card()) == scores * SCORE_BYTES + winners * LINK_MATCH_BYTES
