"""Attention over a batch that has pieces of sequences: later pieces attend to what the earlier ones left."""

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused


class PieceAttention:
    """The attention of one run of a model, whose layers call it one after the other.

    It adds the keys and values of all pieces to the caches of their sequences. Whatever begins in the batch goes
    through the usual kernel in one call, and each later piece in a call of its own, without a copy of the keys.
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
        rows_of_pieces = list(zip(batch.pieces, batch.piece_rows(), strict=True))
        for piece, rows in rows_of_pieces:
            piece.cache.add_layer_states(layer, piece.start, key[:, rows], value[:, rows])
        beginnings = batch.beginnings
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        if beginnings.total:
            q, k, v = (states[:, : beginnings.total] for states in (query, key, value))
            output[: beginnings.total] = self._attention(q, k, v, beginnings, terms)
        for piece, rows in rows_of_pieces:
            if piece.start:
                keys, values = piece.cache.layer_states(layer, piece.stop)
                output[rows] = self._attention.attend_piece(query[:, rows], keys, values, terms)
        return output

    def attend_piece(
        self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, dropped: int = 0
    ) -> Tensor:
        """See `PackedAttention`."""
        return self._attention.attend_piece(query, key, value, terms, dropped)
