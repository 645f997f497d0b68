"""Pieces of sequences, and the KV cache: in which slots the keys lie that the tokens of a piece attend to.

Tensors without I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.ragged.texts import Ids

KeysAndValues = tuple[Tensor, Tensor]
Table = npt.NDArray[np.int64]
KEPT_STATES = 3
"""How many states a cache keeps of a layer: those behind the newest piece and the two before it, since two steps may be
under way."""


class KeySlots(NamedTuple):
    """`size` slots that lie together, from `first` on: of a cache, or rows of the batch where `cache` is None."""

    cache: "SequenceCache | None"
    first: int
    size: int

    @property
    def rows(self) -> slice:
        """The slots among all of the cache, or of the batch."""
        return slice(self.first, self.first + self.size)


def followed_by(slots: tuple[KeySlots, ...], more: KeySlots) -> tuple[KeySlots, ...]:
    """The slots, and `more` behind them, as one where they lie together."""
    if slots and slots[-1].cache is more.cache and slots[-1].rows.stop == more.first:
        return (*slots[:-1], slots[-1]._replace(size=slots[-1].size + more.size))
    return (*slots, more)


def first_slots(slots: Iterable[KeySlots], count: int) -> tuple[KeySlots, ...]:
    """The slots of the first `count` tokens."""
    first = []
    for some in slots:
        if count > 0:
            first.append(some._replace(size=min(count, some.size)))
            count -= some.size
    return tuple(first)


class SequenceCache:
    """What is kept of one sequence that is computed in pieces: keys and values by layer, states of layers that keep
    one, and the last hidden states.

    It has a slot for each token that the sequence does not take from another one. A piece may be computed again, as
    long as the step that it was in was not collected. Only the thread that computes may write.
    """

    def __init__(self, length: int, beginning: tuple[KeySlots, ...] = ()) -> None:
        """`length`: tokens of the sequence. `beginning`: the slots of its first tokens, which other caches have."""
        self.beginning, self.start = beginning, sum(slots.size for slots in beginning)
        self.count = length - self.start
        """Number of slots."""
        self._layers: list[KeysAndValues] = []
        self._states: dict[int, dict[int, Tensor]] = {}
        self._hidden: Tensor | None = None

    def slots(self, count: int) -> tuple[KeySlots, ...]:
        """The slots of the sequence's first `count` tokens."""
        return first_slots((*self.beginning, KeySlots(self, 0, self.count)), count)

    def layer(self, number: int, key: Tensor, value: Tensor) -> KeysAndValues:
        """Keys and values [slots, Hkv, D] of a layer, which the caller writes. `key`, `value` [Hkv, 0 or more, D]: any
        that are alike. Layers come in their order."""
        if number == len(self._layers):
            keys, values = (states.new_empty(self.count, states.shape[0], states.shape[2]) for states in (key, value))
            self._layers.append((keys, values))
        return self.written(number)

    def written(self, number: int) -> KeysAndValues:
        """Keys and values [slots, Hkv, D] of a layer that a piece wrote. Raises IndexError where none did."""
        return self._layers[number]

    def state(self, number: int, token: int) -> Tensor:
        """The state of a layer before a token with which a piece begins. Raises KeyError where no piece ended there."""
        return self._states[number][token]

    def keep_state(self, number: int, start: int, stop: int, state: Tensor) -> None:
        """Keeps the state of a layer behind the piece from `start` to `stop` - 1. Of the pieces before, KEPT_STATES - 1
        keep theirs: they may be computed again."""
        states = self._states.setdefault(number, {})
        earlier = sorted(token for token in states if token <= start)[1 - KEPT_STATES :]
        self._states[number] = {token: states[token] for token in earlier} | {stop: state}

    def add_hidden(self, start: int, rows: Tensor) -> None:
        """Keeps the last hidden states [n, H] of the piece that begins at token `start` of the sequence."""
        if self._hidden is None:
            self._hidden = rows.new_empty(self.count, rows.shape[1])
        self._hidden[start - self.start : start - self.start + len(rows)] = rows

    @property
    def hidden(self) -> Tensor:
        """The last hidden states [slots, H], once every piece was computed."""
        assert self._hidden is not None
        return self._hidden

    @property
    def bytes(self) -> int:
        """Bytes that are kept of the sequence's tokens now."""
        hidden = 0 if self._hidden is None else self._hidden.nbytes
        return hidden + sum(buffer.nbytes for buffers in self._layers for buffer in buffers)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states behind one token."""
        return sum(next(iter(states.values())).nbytes for states in self._states.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start` to `stop` - 1 of a sequence with the token ids `sequence`, which one step computes.

    They attend to themselves and to the tokens before, whose keys are in `cache`, which takes those of the piece too;
    or, where a text is computed at once behind others that begin like it, in the slots `shared` of the batch.
    """

    sequence: Ids
    start: int
    stop: int
    cache: SequenceCache | None = None
    shared: tuple[KeySlots, ...] = ()

    @property
    def tokens(self) -> Ids:
        """Token ids of the piece."""
        return self.sequence[self.start : self.stop]

    @property
    def last(self) -> bool:
        """Whether the sequence ends with this piece."""
        return self.stop == len(self.sequence)

    @property
    def spared(self) -> int:
        """Tokens that this piece spares, since another sequence has them: those before it, if it is the first piece of
        its sequence."""
        return self.start if self.cache is None or self.start == self.cache.start else 0

    def keep_hidden(self, rows: Tensor) -> None:
        """Keeps the last hidden states [n, H] of its tokens until the sequence ends, where it has a cache."""
        if self.cache is not None:
            self.cache.add_hidden(self.start, rows)

    def slots(self, row: int) -> tuple[KeySlots, ...]:
        """The slots of all tokens up to the end of the piece, whose own tokens are the batch's from `row` on."""
        if self.cache is not None:
            return self.cache.slots(self.stop)
        return followed_by(self.shared, KeySlots(None, row, self.stop - self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """What kernels on the host are told of the key slots of a batch.

    `segments` [m, 4]: number of the sequence, its cache (-1: the batch), first slot, slots; none where a sequence
    attends to its own tokens only. `writes` [w, 4]: cache, its first slot, first row of the batch, rows.
    """

    caches: Sequence[SequenceCache]
    segments: Table
    writes: Table

    def layer(self, number: int, key: Tensor, value: Tensor) -> list[KeysAndValues]:
        """Keys and values of a layer of each cache: of those that the batch writes, see `SequenceCache.layer`."""
        filled = set(self.writes[:, 0].tolist())
        return [
            cache.layer(number, key, value) if place in filled else cache.written(number)
            for place, cache in enumerate(self.caches)
        ]

    @classmethod
    def of(cls, pieces: Sequence[Piece], rows: Sequence[int], first: int) -> "SlotTable":
        """Makes the table of a batch whose sequences from number `first` on are `pieces`, which begin at its `rows`."""
        numbers: dict[SequenceCache, int] = {}
        segments, writes = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for sequence, (piece, row) in enumerate(zip(pieces, rows, strict=True), first):
            if piece.cache is not None:
                cache = numbers.setdefault(piece.cache, len(numbers))
                writes.append((cache, piece.start - piece.cache.start, row, piece.stop - piece.start))
            for slots in piece.slots(row) if piece.start else ():
                number = -1 if slots.cache is None else numbers.setdefault(slots.cache, len(numbers))
                segments.append((sequence, number, slots.first, slots.size))
        return cls(caches=list(numbers), segments=_table(segments), writes=_table(writes))


def _table(rows: Sequence[tuple[int, ...]]) -> Table:
    return np.array(rows, dtype=np.int64).reshape(-1, 4)
