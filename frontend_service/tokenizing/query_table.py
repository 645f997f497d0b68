"""Weights of queries by token id: what the frontend looks up by itself for inference-free SPLADE. numpy only."""

import hashlib

import numpy as np
import numpy.typing as npt

from shared.card import ModelCard
from shared.jobs import SparseRows
from shared.ragged import RaggedTokens

ID_BITS = 32
"""Bits of a token id in a sort key, which holds the number of the text above them."""
WEIGHT_BYTES = 4


class QueryTable:
    """The weights of one model's queries. Its methods may run in several threads at once."""

    def __init__(self, content: bytes, card: ModelCard) -> None:
        """`content`: little-endian float32, one for each token id. `card`: it has a `query_route`.

        Raises ValueError where they are not those of the card, or no sparse vector could be made of them.
        """
        route = card.query_route
        assert route is not None
        if len(content) != WEIGHT_BYTES * route.vocabulary_size:
            raise ValueError(f"the query table has {len(content)} bytes for {route.vocabulary_size} token ids")
        if hashlib.sha256(content).hexdigest() != route.table_digest:
            raise ValueError("the query table is not the one that the card names")
        self._weights: npt.NDArray[np.float32] = np.frombuffer(content, dtype="<f4").astype(np.float32)
        if not (np.isfinite(self._weights).all() and (self._weights >= 0).all()):
            raise ValueError("the query table holds a weight that is no number of 0 or more")

    def look_up(self, tokens: RaggedTokens, top_k: int = 0) -> SparseRows:
        """Sparse vectors of texts: the weight of each token id of a text, once. Ids without a weight are left out.

        `top_k`: keeps the largest weights of a text, 0 all of them; of equal weights the smaller ids stay.
        """
        texts = len(tokens)
        ids = np.frombuffer(tokens.ids, dtype="<i4").astype(np.int64)
        owners = np.repeat(np.arange(texts, dtype=np.int64), tokens.lengths)
        keys = np.unique((owners << ID_BITS) + ids)
        owners, ids = keys >> ID_BITS, keys & (1 << ID_BITS) - 1
        weights = self._weights[ids]
        chosen = weights > 0
        if top_k:
            chosen &= _ranks(owners, np.where(chosen, weights, 0)) < top_k
        owners, ids, weights = owners[chosen], ids[chosen], weights[chosen]
        return SparseRows(
            lengths=tuple(np.bincount(owners, minlength=texts).tolist()),
            indices=ids.astype("<i4").tobytes(),
            values=weights.astype("<f4").tobytes(),
        )


def _ranks(owners: npt.NDArray[np.int64], weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The place of each weight among those of its text, the largest first. `owners` ascend."""
    order = np.lexsort((-weights, owners))  # stable: ids ascend in each text
    firsts = np.searchsorted(owners, owners)
    ranks = np.empty_like(owners)
    ranks[order] = np.arange(len(owners)) - firsts[order]
    return ranks
