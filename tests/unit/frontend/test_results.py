"""How many bytes a result will have."""

import pytest
from fakes import card

from frontend_service.domain.results import SPARSE_PAIR_BYTES, result_bytes
from shared.jobs import Encode
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind


@pytest.mark.parametrize("top_k", [1_000, 2_000_000_000])
def test_a_sparse_vector_has_no_more_weights_than_the_vocabulary(top_k: int) -> None:
    """Or one request would reserve gigabytes, and others would be refused until it is answered."""
    sparse = frozenset({OutputKind.SPARSE})
    work = Encode(outputs=sparse, normalize=True, normalize_tokens=True, sparse_top_k=top_k)
    tokens = RaggedTokens.of([[1, 2], [3]])
    assert result_bytes(work, tokens, card(vocabulary_size=100)) == 2 * 100 * SPARSE_PAIR_BYTES
