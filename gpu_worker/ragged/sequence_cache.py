"""The KV cache of one sequence that is computed in pieces, and its hidden states. Tensors without I/O."""

from torch import Tensor


class SequenceCache:
    """What the pieces of a sequence of `length` tokens leave behind for the later ones.

    Every piece writes at its own places, so a piece that is computed again overwrites its own states alone. Memory is
    taken when the first piece is computed. Only the thread that computes may call it.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._keys: list[Tensor] = []  # by layer, [length, Hkv, D]
        self._values: list[Tensor] = []
        self._hidden: Tensor | None = None

    def add_layer_states(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        """Keeps key and value [Hkv, n, D] of the piece that begins at token `start`. Layers come in their order."""
        for buffers, states in ((self._keys, key), (self._values, value)):
            if layer == len(buffers):
                buffers.append(states.new_empty(self.length, states.shape[0], states.shape[2]))
            buffers[layer][start : start + states.shape[1]] = states.transpose(0, 1)

    def layer_states(self, layer: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values [Hkv, stop, D] of a layer, of the first `stop` tokens: views."""
        keys, values = (buffers[layer][:stop].transpose(0, 1) for buffers in (self._keys, self._values))
        return keys, values

    def add_hidden(self, start: int, rows: Tensor) -> None:
        """Keeps the last hidden states [n, H] of the piece that begins at token `start`."""
        if self._hidden is None:
            self._hidden = rows.new_empty(self.length, rows.shape[1])
        self._hidden[start : start + len(rows)] = rows

    @property
    def hidden(self) -> Tensor:
        """The last hidden states [length, H], once every piece was computed."""
        assert self._hidden is not None
        return self._hidden

    @property
    def bytes(self) -> int:
        """Bytes that are kept of the sequence, once its first piece was computed."""
        hidden = [] if self._hidden is None else [self._hidden]
        return sum(states.numel() * states.element_size() for states in (*self._keys, *self._values, *hidden))
