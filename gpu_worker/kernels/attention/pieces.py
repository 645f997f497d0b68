"""Attention over a batch that has pieces of sequences or followers: later pieces attend to what the earlier ones left,
followers to tokens of other texts."""

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused


class PieceAttention:
    """The attention of one run of a model, whose layers call it one after the other.

    It adds the keys and values of all pieces to the caches of their sequences. Whatever begins in the batch goes
    through the usual kernel in one call, all followers in another, and each later piece in a call of its own. Layers
    that run together attend by themselves, and take only what is kept from here.
    """

    def __init__(self, attention: PackedAttention) -> None:
        self.of_texts = attention
        self._layer = 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        """See `LayerAttention`. Raises ModelRefused where a layer needs the whole text at once."""
        if not terms.causal:
            raise ModelRefused("a layer attends to tokens that come later")
        if terms.bias is not None:
            raise ModelRefused("a layer adds a bias by distance")
        beginnings = batch.beginnings
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        if beginnings.total:
            q, k, v = (states[:, : beginnings.total] for states in (query, key, value))
            output[: beginnings.total] = self.of_texts(q, k, v, beginnings, terms)
        for piece, rows in zip(batch.pieces, batch.piece_rows(), strict=True):
            keys, values = piece.cache.extend_layer(self._layer, piece.start, key[:, rows], value[:, rows])
            if piece.start:
                output[rows] = self.of_texts.attend_piece(query[:, rows], keys, values, terms)
        if batch.followers:
            rows = slice(batch.followers.first, None)
            output[rows] = self.of_texts.attend_followers(query[:, rows], key, value, batch.followers, terms)
        self._layer += 1
        return output

    def may_join(self, batch: RaggedBatch, terms: AttentionTerms) -> bool:
        """Whether layers with these terms may run in one call: of pieces they need nothing but room for keys and
        values."""
        return terms.causal and terms.bias is None and not any(piece.forks for piece in batch.pieces)

    def keep_layers(self, count: int, none: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> list[Tensor]:
        """Takes the place of the next `count` layers' calls, where they `may_join`. Returns the keys and values
        [L, Hkv, D] that are kept of each piece's sequence, by layer; the caller adds those of the pieces. `none`: the
        keys or values [Hkv, 0, D] of no token.
        """
        layers = range(self._layer, self._layer + count)
        self._layer = layers.stop
        buffers = (piece.cache.buffers(layer, none, none) for layer in layers for piece in batch.pieces)
        return [buffer for both in buffers for buffer in both]
