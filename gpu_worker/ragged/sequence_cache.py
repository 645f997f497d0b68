"""The KV cache of one sequence that is computed in pieces, and its hidden states. Tensors without I/O."""

from collections import Counter
from dataclasses import dataclass
from math import inf

from torch import Tensor

from gpu_worker.ragged.horizon import Horizon
from gpu_worker.ragged.layer_states import PLACES, AllStates, RecentStates, Seen
from gpu_worker.ragged.text_bytes import TextBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What a layer keeps: the states of at most `most` tokens, of `token_bytes` each."""

    states: AllStates | RecentStates
    most: float
    token_bytes: int


class SequenceCache:
    """What the pieces of a sequence of `length` tokens leave behind for the later ones.

    A piece may be computed again, as long as the step that it was in was not collected. Only the thread that computes
    may call the methods; `collected` is set by the one that collects.
    """

    def __init__(
        self, length: int, places: int = PLACES, leader: "SequenceCache | None" = None, shared: int = 0
    ) -> None:
        """`places`: a layer keeps only recent tokens where so many times what a token sees is less than `length`.

        `leader`: the cache of a sequence with the same first `shared` tokens, which the pieces before compute; no layer
        of the model keeps recent tokens only.
        """
        self.length, self.shared = length, shared
        self.depth: int = 0 if leader is None else leader.depth + 1
        """How many caches must be filled before this one."""
        self._leader = leader
        self.collected = 0
        """The first token of the pieces that may still be computed again."""
        self._places = places
        self._layers: list[_Layer] = []
        self._hidden: Tensor | None = None

    def extend_layer(self, layer: int, start: int, key: Tensor, value: Tensor, horizon: Horizon) -> Seen:
        """Adds key and value [Hkv, n, D] of the piece that begins at token `start`. Returns what the piece sees.

        Layers come in their order. What no later piece sees is given back.
        """
        states = self._states_of(layer, key, value, horizon)
        if self._leader is not None and start == self.shared:  # again where the piece is computed again
            others = self._leader._layers[layer].states
            assert isinstance(states, AllStates)
            assert isinstance(others, AllStates)
            states.copy_from(others, start)
        return states.extend(start, key, value, self.collected)

    def keeps_recent(self, horizon: Horizon) -> bool:
        """Whether a layer with this horizon keeps recent tokens only."""
        return self._places * horizon.most_seen < self.length

    def buffers(self, layer: int, key: Tensor, value: Tensor, horizon: Horizon) -> tuple[Tensor, Tensor]:
        """The keys and values [L, Hkv, D] of all tokens of a layer, to which the caller adds those of pieces. `key`,
        `value` [Hkv, 0 or more, D]: any that are alike. The layer keeps more than recent tokens."""
        states = self._states_of(layer, key, value, horizon)
        assert isinstance(states, AllStates)
        return states.buffers(key, value)

    def _states_of(self, layer: int, key: Tensor, value: Tensor, horizon: Horizon) -> AllStates | RecentStates:
        """The states that a layer keeps. Layers come in their order."""
        if layer == len(self._layers):
            most = PLACES * horizon.most_seen
            token_bytes = sum(states.shape[0] * states.shape[2] * states.element_size() for states in (key, value))
            recent = self.keeps_recent(horizon)
            layer_states = RecentStates(self.length, horizon) if recent else AllStates(self.length)
            self._layers.append(_Layer(states=layer_states, most=most, token_bytes=token_bytes))
        return self._layers[layer].states

    def add_hidden(self, start: int, rows: Tensor) -> None:
        """Keeps the last hidden states [n, H] of the piece that begins at token `start`."""
        if self._hidden is None:
            self._hidden = rows.new_empty(self.length, rows.shape[1])
        if self._leader is not None and start == self.shared:
            self._hidden[:start] = self._leader.hidden[:start]
        self._hidden[start : start + len(rows)] = rows

    def collect(self, stop: int) -> None:
        """Notes that no piece before token `stop` is computed again."""
        self.collected, self._leader = stop, None

    @property
    def hidden(self) -> Tensor:
        """The last hidden states [length, H], once every piece was computed."""
        assert self._hidden is not None
        return self._hidden

    @property
    def bytes(self) -> int:
        """Bytes that are kept of the sequence now."""
        hidden = 0 if self._hidden is None else self._hidden.nbytes
        return hidden + sum(layer.states.bytes for layer in self._layers)

    @property
    def text_bytes(self) -> TextBytes:
        """Bytes that are kept at most of a sequence of any length, once a piece of this one was computed."""
        of_all = sum(layer.token_bytes for layer in self._layers if layer.most == inf)
        recent = Counter[int]()
        for layer in self._layers:
            if layer.most < inf:
                recent[int(layer.most)] += layer.token_bytes
        return TextBytes(token_bytes=of_all + self.hidden[0].nbytes, recent=tuple(sorted(recent.items())))
