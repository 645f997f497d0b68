"""The files that a worker sends to frontends so that they can read texts, and weights of queries by token id: how
inference-free SPLADE reads queries, in frontends and in workers. numpy only."""

import numpy as np
import numpy.typing as npt

from shared.jobs import RaggedTokens, SparseRows

TOKENIZER_FILE = "tokenizer.json"
QUERY_TOKENIZER_FILE = "query_tokenizer.json"
"""The tokenizer of queries, where they are read with another one than documents."""
QUERY_TABLE_FILE = "query_table.f32"
"""Weights of queries by token id, little-endian float32, where frontends look queries up by themselves."""
TABLE_WEIGHTS = 4 * 1024 * 1024
"""Most weights of such a table: 16 MiB."""
WEIGHT_BYTES = 4


ID_BITS = 32
"""Bits of a token id in a sort key, which holds the number of the text above them."""


class QueryTable:
    """The weights of one model's queries, `weights` [V] float32. Its methods may run in several threads at once."""

    def __init__(self, weights: npt.NDArray[np.float32]) -> None:
        """Raises ValueError where no sparse vector could be made of the weights."""
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("the query table holds a weight that is no number of 0 or more")
        self.weights = weights

    @property
    def content(self) -> bytes:
        """The weights as workers send them to frontends: little-endian float32."""
        return self.weights.astype("<f4").tobytes()

    def look_up(self, tokens: RaggedTokens, top_k: int = 0) -> SparseRows:
        """Sparse vectors of texts: the weight of each token id of a text, once. Ids without a weight are left out.

        `top_k`: keeps the largest weights of a text, 0 all of them; of equal weights the smaller ids stay.
        """
        texts = len(tokens)
        ids = np.frombuffer(tokens.ids, dtype="<i4").astype(np.int64)
        owners = np.repeat(np.arange(texts, dtype=np.int64), tokens.lengths)
        keys = np.unique((owners << ID_BITS) + ids)
        owners, ids = keys >> ID_BITS, keys & (1 << ID_BITS) - 1
        weights = self.weights[ids]
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
