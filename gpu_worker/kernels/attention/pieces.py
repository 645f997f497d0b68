"""Attention over a batch that has pieces of sequences or followers: later pieces attend to what the earlier ones left,
followers to tokens of other texts."""

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.followers import Followers
from gpu_worker.ragged.sequence_cache import KeysAndValues
from shared.errors import ModelRefused


class PieceAttention:
    """The attention of one run of a model, whose layers call it one after the other.

    It adds the keys and values of all pieces to the caches of their sequences. Whatever begins in the batch goes
    through the usual kernel in one call, all followers in another, and each later piece in a call of its own. A layer
    that reuses the keys of an earlier layer keeps nothing. Layers that run together attend by themselves, and take only
    what is kept from here.
    """

    capturable = False  # the calls of a later piece have other shapes than those of the piece before

    def __init__(self, attention: PackedAttention) -> None:
        self.name, self.of_texts = attention.name, attention
        self._layer = 0
        self._seen_as: dict[str, list[KeysAndValues]] = {}  # by the name of keys: what each piece sees

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
        seen = self._seen_as[terms.keys_as] if terms.reuses_keys else self._extend(key, value, batch, terms)
        for piece, rows, (keys, values) in zip(batch.pieces, batch.piece_rows(), seen, strict=True):
            if piece.start:
                output[rows] = self.of_texts.attend_piece(query[:, rows], keys, values, terms)
        if batch.followers:
            rows = slice(batch.followers.first, None)
            output[rows] = self.of_texts.attend_followers(query[:, rows], key, value, batch.followers, terms)
        return output

    def _extend(self, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> list[KeysAndValues]:
        """Adds a layer's keys and values to the caches. Returns what each piece sees."""
        seen = [
            piece.cache.extend_layer(self._layer, piece.start, key[:, rows], value[:, rows])
            for piece, rows in zip(batch.pieces, batch.piece_rows(), strict=True)
        ]
        self._layer += 1
        if terms.keys_as:
            self._seen_as[terms.keys_as] = seen
        return seen

    def may_join(self, batch: RaggedBatch, terms: AttentionTerms) -> bool:
        """Whether layers with these terms may run in one call: of pieces they need nothing but room for keys and
        values."""
        if not terms.causal or terms.bias is not None or terms.keys_as:
            return False
        return not any(piece.forks for piece in batch.pieces)

    def keep_layers(self, count: int, none: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> list[Tensor]:
        """Takes the place of the next `count` layers' calls, where they `may_join`. Returns the keys and values
        [L, Hkv, D] that are kept of each piece's sequence, by layer; the caller adds those of the pieces. `none`: the
        keys or values [Hkv, 0, D] of no token.
        """
        layers = range(self._layer, self._layer + count)
        self._layer = layers.stop
        buffers = (piece.cache.buffers(layer, none, none) for layer in layers for piece in batch.pieces)
        return [buffer for both in buffers for buffer in both]

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        """See `PackedAttention`."""
        return self.of_texts.attend_piece(query, key, value, terms)

    def attend_followers(
        self, query: Tensor, key: Tensor, value: Tensor, followers: Followers, terms: AttentionTerms
    ) -> Tensor:
        """See `PackedAttention`."""
        return self.of_texts.attend_followers(query, key, value, followers, terms)
