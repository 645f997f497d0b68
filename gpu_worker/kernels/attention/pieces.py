"""Attention over a batch that has pieces of sequences: later pieces attend to what the earlier ones left."""

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused


class PieceAttention:
    """The attention of one run of a model, whose layers call it one after the other.

    It adds the keys and values of all pieces to the caches of their sequences. Whatever begins in the batch goes
    through the usual kernel in one call, and each later piece in a call of its own. Keys and values are copied for it
    only in layers that do not see the whole text.
    """

    capturable = False  # the calls of a later piece have other shapes than those of the piece before

    def __init__(self, attention: PackedAttention) -> None:
        self.name = attention.name
        self._attention, self._layer = attention, 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        """See `PackedAttention`. Raises ModelRefused where a layer needs the whole text at once."""
        if not terms.causal:
            raise ModelRefused("a layer attends to tokens that come later")
        if terms.bias is not None:
            raise ModelRefused("a layer adds a bias by distance")
        layer, self._layer = self._layer, self._layer + 1
        beginnings = batch.beginnings
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        if beginnings.total:
            q, k, v = (states[:, : beginnings.total] for states in (query, key, value))
            output[: beginnings.total] = self._attention(q, k, v, beginnings, terms)
        for piece, rows in zip(batch.pieces, batch.piece_rows(), strict=True):
            states = key[:, rows], value[:, rows]
            keys, values, dropped = piece.cache.extend_layer(layer, piece.start, *states, terms.horizon)
            if piece.start:
                output[rows] = self._attention.attend_piece(query[:, rows], keys, values, terms, dropped)
        return output

    def attend_piece(
        self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, dropped: int = 0
    ) -> Tensor:
        """See `PackedAttention`."""
        return self._attention.attend_piece(query, key, value, terms, dropped)
