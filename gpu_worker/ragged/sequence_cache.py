"""The KV cache of one sequence that is computed in pieces, and its hidden states. Tensors without I/O."""

from torch import Tensor

KeysAndValues = tuple[Tensor, Tensor]


class SequenceCache:
    """What the pieces of a sequence of `length` tokens leave behind for the later ones.

    A piece may be computed again, as long as the step that it was in was not collected. Only the thread that computes
    may call the methods, but for `collect`.
    """

    def __init__(self, length: int, leader: "SequenceCache | None" = None, shared: int = 0) -> None:
        """`leader`: the cache of a sequence with the same first `shared` tokens, which the pieces before compute."""
        self.length, self.shared = length, shared
        self.depth: int = 0 if leader is None else leader.depth + 1
        """How many caches must be filled before this one."""
        self._leader = leader
        self._layers: list[KeysAndValues] = []
        self._hidden: Tensor | None = None

    def extend_layer(self, layer: int, start: int, key: Tensor, value: Tensor) -> KeysAndValues:
        """Adds key and value [Hkv, n, D] of the piece that begins at token `start`. Returns those [Hkv, K, D] of all
        tokens up to its end. Layers come in their order."""
        stop, buffers = start + key.shape[1], self.buffers(layer, key, value)
        if self._leader is not None and start == self.shared:  # again where the piece is computed again
            for buffer, others in zip(buffers, self._leader._layers[layer], strict=True):
                buffer[:start] = others[:start]
        for buffer, states in zip(buffers, (key, value), strict=True):
            buffer[start:stop] = states.transpose(0, 1)
        keys, values = (buffer[:stop].transpose(0, 1) for buffer in buffers)
        return keys, values

    def buffers(self, layer: int, key: Tensor, value: Tensor) -> KeysAndValues:
        """The keys and values [L, Hkv, D] of all tokens of a layer, to which the caller adds those of pieces. `key`,
        `value` [Hkv, 0 or more, D]: any that are alike. Layers come in their order."""
        if layer == len(self._layers):
            keys, values = (states.new_empty(self.length, states.shape[0], states.shape[2]) for states in (key, value))
            self._layers.append((keys, values))
        return self._layers[layer]

    def leaders(self, layer: int) -> KeysAndValues:
        """The keys and values [L, Hkv, D] of a layer of the sequence that begins with the same tokens: where a piece
        `forks`, the caller takes those of the shared tokens from there."""
        assert self._leader is not None
        return self._leader._layers[layer]

    def add_hidden(self, start: int, rows: Tensor) -> None:
        """Keeps the last hidden states [n, H] of the piece that begins at token `start`."""
        if self._hidden is None:
            self._hidden = rows.new_empty(self.length, rows.shape[1])
        if self._leader is not None and start == self.shared:
            self._hidden[:start] = self._leader.hidden[:start]
        self._hidden[start : start + len(rows)] = rows

    def collect(self) -> None:
        """Notes that a piece was collected: nothing is taken from the leader again."""
        self._leader = None

    @property
    def hidden(self) -> Tensor:
        """The last hidden states [length, H], once every piece was computed."""
        assert self._hidden is not None
        return self._hidden

    @property
    def bytes(self) -> int:
        """Bytes that are kept of the sequence now."""
        hidden = 0 if self._hidden is None else self._hidden.nbytes
        return hidden + sum(buffer.nbytes for buffers in self._layers for buffer in buffers)
