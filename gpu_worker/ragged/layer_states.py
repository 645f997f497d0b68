"""Keys and values that one layer keeps of a sequence in pieces. Tensors without I/O."""

import torch
from torch import Tensor

from gpu_worker.ragged.horizon import Horizon

PLACES = 3
"""Most places of a sequence at which a piece may still begin. With two pieces under way these are the beginning of
either, since both are computed again where the first fails, and the end of the second, where the next one begins."""
Seen = tuple[Tensor, Tensor, int]
"""Keys and values [Hkv, K, D] up to the end of a piece, and how many of the sequence's first tokens they leave out."""


class AllStates:
    """Keys and values of every token, in memory that is taken at once."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._buffers: tuple[Tensor, Tensor] | None = None

    def extend(self, start: int, key: Tensor, value: Tensor, collected: int) -> Seen:
        """Adds the states [Hkv, n, D] of the piece that begins at token `start`. Returns what the piece sees."""
        stop, buffers = start + key.shape[1], self.buffers(key, value)
        for buffer, states in zip(buffers, (key, value), strict=True):
            buffer[start:stop] = states.transpose(0, 1)
        keys, values = (buffer[:stop].transpose(0, 1) for buffer in buffers)
        return keys, values, 0

    def buffers(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [L, Hkv, D] of every token, in the format and with the heads of these [Hkv, any, D]."""
        if self._buffers is None:
            keys, values = (states.new_empty(self._length, states.shape[0], states.shape[2]) for states in (key, value))
            self._buffers = keys, values
        return self._buffers

    def copy_from(self, other: "AllStates", count: int) -> None:
        """Takes the states of the first `count` tokens from another sequence that begins with them as well."""
        assert other._buffers is not None
        if self._buffers is None:
            keys, values = (buffer.new_empty(self._length, *buffer.shape[1:]) for buffer in other._buffers)
            self._buffers = keys, values
        for buffer, states in zip(self._buffers, other._buffers, strict=True):
            buffer[:count] = states[:count]

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(buffer.nbytes for buffer in self._buffers or ())


class RecentStates:
    """Keys and values that a piece sees which begins at one of a few places: those before it, up to the horizon.

    Each place has tensors of its own, so that what lies between two places is given back.
    """

    def __init__(self, length: int, horizon: Horizon) -> None:
        self._length, self._horizon = length, horizon
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # by place, each [k, Hkv, D]

    def extend(self, start: int, key: Tensor, value: Tensor, collected: int) -> Seen:
        """Adds the states [Hkv, n, D] of the piece that begins at token `start`. Returns what the piece sees.

        `collected`: the first token that a piece may begin at which is computed again. States for earlier places are
        given back; those for later places than `start` were left by a step that failed.
        """
        first, stop = self._horizon.first_seen(start), start + key.shape[1]
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        if start:
            keys, values = (torch.cat(both) for both in zip(self._before[start], (keys, values), strict=True))
        self._before = {place: states for place, states in self._before.items() if collected <= place <= start}
        if stop < self._length:
            still_seen = slice(self._horizon.first_seen(stop) - first, None)
            self._before[stop] = keys[still_seen].clone(), values[still_seen].clone()
        return keys.transpose(0, 1), values.transpose(0, 1), first

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(tensor.nbytes for states in self._before.values() for tensor in states)
