"""Attention over packed sequences, plugged into unmodified transformers models under the name "ragged".

A model calls the registered function with query [1, H, T, D] and key, value [1, Hkv, T, D], rotary positions
already applied, and with the step's batch as the keyword `ragged`; it wants [1, T, H, D] back. No mask function
is registered, so transformers builds no mask at all: causality and windows are read here from its arguments.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.chunks import Beginnings, Chunks
from gpu_worker.ragged.pieces import KeysAndValues, KeySlots, SequenceCache, SlotTable
from shared.errors import ModelRefused

NAME, UNCAPPED = "ragged", "ragged-uncapped"
"""Names in transformers. The second is for models that run PyTorch's fused attention by default, which has no softcap
whatever their configs say."""
CHUNK = 64
"""Tokens of a chunk, as transformers has them for the gated delta rule: a token reads up to so many others directly."""
REACH = 6
"""First tokens of a sequence that a convolution may reach back from. LFM3's, the widest, reaches so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTerms:
    """Rules for the scores of one layer: scale, visibility, softcap and bias.

    `window` is exclusive: token i sees j where i - j < window (causal) or |i - j| < window. `softcap` is Gemma2's bound
    c x tanh(score / c). `bias` is called with the query [..., H, L, D] and the key [..., Hkv, L, D] of sequences of one
    length and returns what is added to their scaled scores, broadcastable to [..., H, L, L].
    """

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Callable[[Tensor, Tensor], Tensor] | None = None

    def mask(self, length: int, attended: int, device: torch.device, past: int = 0) -> Tensor | None:
        """Makes the mask [L, A] bool: True where token `past` + i (row) may see token j; None for all."""
        end = past + length
        if not self.causal and not self.reaches_less_than(end):
            return None
        distance = torch.arange(past, end, device=device)[:, None] - torch.arange(attended, device=device)
        allowed = distance.abs() < (end if self.window is None else self.window)
        if self.causal:
            allowed &= distance >= 0
        return allowed

    def reaches_less_than(self, length: int) -> bool:
        """Whether a window hides tokens of a text of `length` tokens from each other."""
        return self.window is not None and self.window < length


class LayerAttention(Protocol):
    """What the layers of a model attend through, one after the other."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        """Computes attention inside each sequence of a packed batch: query [H, T, D], key and value [Hkv, T, D] ->
        [T, H, D]."""


class PackedAttention(LayerAttention, Protocol):
    """A kernel that attends inside each sequence of a packed batch without later pieces.

    `capturable`: it reads only tensors and plain numbers, so that layers can be compiled and captured.
    """

    name: str
    capturable: bool

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        """Computes attention of n tokens of a sequence to those before them: query [H, n, D], key and value [Hkv, K, D]
        -> [n, H, D].

        The keys are those of the sequence's first K tokens, up to the last query's. The terms are causal and have no
        bias.
        """

    def attend_slots(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: RaggedBatch,
        slots: SlotTable,
        caches: Sequence[KeysAndValues],
        terms: AttentionTerms,
    ) -> Tensor:
        """Computes attention of a batch with pieces to the keys of their slots; shapes as in `__call__`.

        `slots` are the batch's; `caches` has a layer's keys and values [slots, Hkv, D] of each of its caches. The terms
        are causal and have no bias.

        Whatever begins in the batch goes through the kernel in one call, each piece that does not in one of its own.
        """
        beginnings, of_cache = batch.beginnings, dict(zip(slots.caches, caches, strict=True))
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        if beginnings.total:
            q, k, v = (states[:, : beginnings.total] for states in (query, key, value))
            output[: beginnings.total] = self(q, k, v, beginnings, terms)
        for piece, rows in zip(batch.pieces, batch.piece_rows(), strict=True):
            if piece.start:
                places = piece.slots(rows.start)
                keys, values = (_states_of(places, of_cache, side, states) for side, states in enumerate((key, value)))
                output[rows] = self.attend_piece(query[:, rows], keys, values, terms)
        return output


def _states_of(
    slots: Sequence[KeySlots], caches: Mapping[SequenceCache, KeysAndValues], side: int, states: Tensor
) -> Tensor:
    """Keys (`side` 0) or values (1) of slots, [Hkv, K, D]; `states` [Hkv, T, D] are the batch's."""
    parts = [
        states[:, some.rows] if some.cache is None else caches[some.cache][side][some.rows].transpose(0, 1)
        for some in slots
    ]
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def explicit(query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, attended: int, past: int = 0) -> Tensor:
    """Computes softmax attention, written out: query [..., H, L, D], key and value [..., Hkv, K, D] -> [..., H, L, D].

    Only the first `attended` keys count; `past` of them precede the first query.
    """
    bias = None if terms.bias is None else terms.bias(query, key)[..., :attended]
    key, value = key[..., :attended, :], value[..., :attended, :]
    groups = query.shape[-3] // key.shape[-3]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=-3), value.repeat_interleave(groups, dim=-3)
    scores = torch.matmul(query, key.transpose(-1, -2)).mul_(terms.scale)
    if bias is not None:
        scores = scores.add_(bias)
    if terms.softcap is not None:
        scores = scores.div_(terms.softcap).tanh_().mul_(terms.softcap)
    mask = terms.mask(query.shape[-2], attended, query.device, past)
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), value)


class OneByOne(PackedAttention):
    """The obvious twin that tests compare all kernels with: one sequence after the other, written out."""

    name = "one-by-one"
    capturable = False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for start, stop, keys in zip(batch.offsets[:-1], batch.offsets[1:], batch.attended.tolist(), strict=True):
            rows = slice(int(start), int(stop))
            output[rows] = explicit(query[:, rows], key[:, rows], value[:, rows], terms, keys).transpose(0, 1)
        return output

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        keys = key.shape[1]
        return explicit(query, key, value, terms, keys, keys - query.shape[1]).transpose(0, 1)


class PieceAttention:
    """The attention of one run of a model over a batch with pieces, whose layers call it one after the other.

    It writes the keys and values of each layer to the caches of pieces, before any of these is read.
    """

    def __init__(self, attention: PackedAttention) -> None:
        self._attention, self._layer = attention, 0
        self._slots: SlotTable | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        """See `LayerAttention`. Raises ModelRefused where a layer needs the whole text at once."""
        if not terms.causal:
            raise ModelRefused("a layer attends to tokens that come later")
        if terms.bias is not None:
            raise ModelRefused("a layer adds a bias by distance")
        slots = self._slots = self._slots or batch.slots
        caches = slots.layer(self._layer, key, value)
        for cache, first, row, count in slots.writes.tolist():
            for buffer, states in zip(caches[cache], (key, value), strict=True):
                buffer[first : first + count] = states[:, row : row + count].transpose(0, 1)
        self._layer += 1
        return self._attention.attend_slots(query, key, value, batch, slots, caches, terms)


def terms_of(
    module: nn.Module,
    scaling: float | None,
    head: int,
    is_causal: bool | None,
    sliding_window: int | None,
    softcap: float | None,
) -> AttentionTerms:
    """Reads the attention terms from a transformers layer and the arguments of its call.

    Causality is the argument where there is one; decoders whose config says `is_causal=False` leave the module's
    own attribute True. Windows of those decoders are inclusive (transformers' masking_utils: distance <= window),
    all others exclusive.
    """
    causal = is_causal
    if causal is None:
        causal = not _made_bidirectional(module) and bool(getattr(module, "is_causal", False))
    if sliding_window is not None and _made_bidirectional(module):
        sliding_window += 1
    return AttentionTerms(
        scale=head**-0.5 if scaling is None else scaling,
        causal=causal,
        window=sliding_window,
        softcap=softcap,
    )


def _made_bidirectional(module: nn.Module) -> bool:
    return getattr(getattr(module, "config", None), "is_causal", None) is False


def is_causal(model: nn.Module) -> bool:
    """Whether some layer of the model is causal, as far as layers say so before they are called."""
    return any(getattr(layer, "is_causal", False) and not _made_bidirectional(layer) for layer in model.modules())


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ragged: "AttentionCall | None" = None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; the module's docstring gives the shapes."""
    if ragged is None:
        raise ModelRefused("its layers do not hand the batch on to their attention")
    terms = terms_of(module, scaling, query.shape[-1], is_causal, sliding_window, softcap)
    return ragged.attention(query[0], key[0], value[0], ragged.batch, terms)[None], None


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """The attention and the batch of a step, which the model hands to every layer."""

    attention: LayerAttention
    batch: RaggedBatch
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers of layers' states, in the order in which layers run."""

    @cached_property
    def chunks(self) -> Chunks:
        """The batch in chunks, for layers with a recurrence."""
        pieces = [piece.start > 0 for piece in self.batch.pieces]
        return Chunks.of(self.batch.offsets, CHUNK, self.batch.ids.device, pieces)

    @cached_property
    def beginnings(self) -> Beginnings:
        """The first tokens of the sequences, for layers with a short convolution."""
        return Beginnings.of(self.batch.offsets, REACH, self.batch.ids.device)


def attend_uncapped(
    module: nn.Module, *arguments: Any, softcap: float | None = None, **options: Any
) -> tuple[Tensor, None]:
    """Attends as `attend` does, and ignores its `softcap`."""
    return attend(module, *arguments, **options)


def register() -> None:
    """Registers both names in transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    AttentionInterface.register(UNCAPPED, attend_uncapped)
