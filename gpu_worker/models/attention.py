"""Attention over packed sequences, plugged into unmodified transformers models under the name "ragged".

A model calls the registered function with query [1, H, T, D] and key, value [1, Hkv, T, D], rotary positions
already applied, and with the step's batch as the keyword `ragged`; it wants [1, T, H, D] back. No mask function
is registered, so transformers builds no mask at all: causality and windows are settled here from its arguments.
"""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.ragged_batch import RaggedBatch, Run

NAME = "ragged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What restricts and shapes the scores of one layer.

    `window` is exclusive: token i sees j where i - j < window (causal) or |i - j| < window. `softcap` is
    Gemma2's bound c x tanh(score / c). `bias` is called with the query [..., H, L, D] and the key [..., Hkv, L, D]
    of sequences of one length and gives what is added to their scaled scores, broadcastable to [..., H, L, L].
    """

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Callable[[Tensor, Tensor], Tensor] | None = None

    def mask(self, length: int, attended: int, device: torch.device) -> Tensor | None:
        """[L, A] bool, True where token i (row) may see token j of the first A; None where it may see all of them."""
        window = length if self.window is None else min(self.window, length)
        if not self.causal and window == length:
            return None
        distance = torch.arange(length, device=device)[:, None] - torch.arange(attended, device=device)
        allowed = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            allowed &= distance >= 0
        return allowed & (distance.abs() < window)


class PackedAttention(Protocol):
    """A way to attend inside each sequence of a packed batch."""

    name: str

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        """query [H, T, D], key and value [Hkv, T, D] -> [T, H, D]."""


def explicit(query: Tensor, key: Tensor, value: Tensor, terms: Terms, attended: int) -> Tensor:
    """Softmax attention written out: query [..., H, L, D], key and value [..., Hkv, L, D] -> [..., H, L, D].

    Only the first `attended` keys count.
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
    mask = terms.mask(query.shape[-2], attended, query.device)
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), value)


def fused(query: Tensor, key: Tensor, value: Tensor, terms: Terms, attended: int) -> Tensor:
    """The same through PyTorch's fused kernel; no softcap."""
    length = query.shape[-2]
    unseen = terms.window is not None and terms.window < length
    plain_causal = terms.bias is None and terms.causal and not unseen and attended == length
    mask = None if plain_causal else terms.mask(length, attended, query.device)
    if terms.bias is not None:
        # The kernels take masks of 2 or 4 dimensions.
        bias = terms.bias(query, key)[..., :attended].expand(*query.shape[:-1], attended)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        query,
        key[..., :attended, :],
        value[..., :attended, :],
        attn_mask=mask,
        is_causal=plain_causal and length > 1,
        scale=terms.scale,
        enable_gqa=query.shape[-3] != key.shape[-3],
    )


class OneByOne:
    """The obvious twin: one sequence after the other, written out. Serves where nothing faster can."""

    name = "one-by-one"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        attended = np.diff(batch.offsets) if batch.keys is None else batch.keys.lengths
        for start, stop, keys in zip(batch.offsets[:-1], batch.offsets[1:], attended.tolist(), strict=True):
            rows = slice(int(start), int(stop))
            output[rows] = explicit(query[:, rows], key[:, rows], value[:, rows], terms, keys).transpose(0, 1)
        return output


class EqualRuns:
    """Neighbours of equal length as one dense batch, by views: no copy in, no padding.

    Up to `written_out` tokens the products are written out, above that the fused kernel runs; which of the
    two is faster depends on the processor and the number format, so it is measured once at load.
    """

    def __init__(self, written_out: int) -> None:
        self.written_out = written_out
        self.name = f"equal-runs (written out to {written_out} tokens)"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for run in batch.runs():
            rows = slice(run.start, run.stop)
            q, k, v = (_by_sequence(each[:, rows], run) for each in (query, key, value))
            attend = explicit if terms.softcap is not None or run.length <= self.written_out else fused
            output[rows] = attend(q, k, v, terms, run.attended).transpose(1, 2).flatten(0, 1)
        return output


def _by_sequence(states: Tensor, run: Run) -> Tensor:
    """[H, N x L, D] -> [N, H, L, D], a view."""
    heads, _, width = states.shape
    return states.view(heads, run.count, run.length, width).transpose(0, 1)


class Varlen:
    """PyTorch's FlashAttention over packed sequences: CUDA, half precision, no softcap, no bias.

    Its signature grew: grouped heads must be announced from 2.13 on and are accepted as they are before; keys that do
    not count are told it from then on (`seqused_k`) and taken out before. Either way it lines up the last query with
    the last key, so causal layers and windows with such keys run as equal runs.
    """

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._attend: Callable[..., Any] = varlen_attn
        self._parameters = inspect.signature(varlen_attn).parameters
        self._lined_up = EqualRuns(written_out=0)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        if batch.keys is not None and (terms.causal or terms.window is not None):
            return self._lined_up(query, key, value, batch, terms)
        reach = -1 if terms.window is None else terms.window - 1
        options: dict[str, Any] = {"scale": terms.scale}
        if "window_size" in self._parameters:
            options["window_size"] = (reach, 0 if terms.causal else reach)
        elif terms.window is None:
            options["is_causal"] = terms.causal
        else:
            raise NotImplementedError("this PyTorch's varlen attention knows no sliding window")
        if "enable_gqa" in self._parameters:
            options["enable_gqa"] = query.shape[0] != key.shape[0]
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        ends, longest = batch.cu_seqlens, batch.longest
        key_ends, longest_key = ends, longest
        if batch.keys is not None and "seqused_k" in self._parameters:
            options["seqused_k"] = batch.keys.counts
        elif batch.keys is not None:
            k, v = (each.index_select(0, batch.keys.rows) for each in (k, v))
            key_ends, longest_key = batch.keys.cu_seqlens, int(batch.keys.lengths.max())
        output: Tensor = self._attend(q, k, v, ends, key_ends, longest, longest_key, **options)
        return output


def terms_of(
    module: nn.Module,
    scaling: float | None,
    head: int,
    is_causal: bool | None,
    sliding_window: int | None,
    softcap: float | None,
) -> Terms:
    """What a transformers layer says of its attention.

    Causality is the argument where it is given; decoders whose config says `is_causal=False` leave the module's
    own attribute True. Those models' windows are inclusive (transformers' masking_utils: distance <= window),
    all others exclusive.
    """
    config = getattr(module, "config", None)
    decoder_made_bidirectional = getattr(config, "is_causal", None) is False
    causal = is_causal
    if causal is None:
        causal = not decoder_made_bidirectional and bool(getattr(module, "is_causal", False))
    if sliding_window is not None and decoder_made_bidirectional:
        sliding_window += 1
    return Terms(
        scale=head**-0.5 if scaling is None else scaling,
        causal=causal,
        window=sliding_window,
        softcap=softcap,
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ragged: "AttentionCall",
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls; see the module's docstring for shapes."""
    ragged.count += 1
    terms = terms_of(module, scaling, query.shape[-1], is_causal, sliding_window, softcap)
    return ragged.attention(query[0], key[0], value[0], ragged.batch, terms)[None], None


@dataclass(slots=True)
class AttentionCall:
    """What travels through the model to every layer: the batch, and how many layers attended to it."""

    attention: PackedAttention
    batch: RaggedBatch
    count: int = 0


def register() -> None:
    """Makes `attn_implementation="ragged"` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def choose(device: torch.device, dtype: torch.dtype, head: int, *, softcap: bool, bias: bool) -> PackedAttention:
    """The fastest attention that this device, number format and model allow."""
    if device.type == "cpu":
        return EqualRuns(written_out=measure_written_out(dtype, head))
    flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and not (softcap or bias)
    if flash and head % 8 == 0 and head <= 256 and torch.cuda.get_device_capability(device) >= (8, 0):
        return Varlen()
    return EqualRuns(written_out=0)


def measure_written_out(dtype: torch.dtype, head: int) -> int:
    """The longest of a few lengths up to which written-out products beat the fused kernel on this processor."""

    def seconds(attention: EqualRuns, batch: RaggedBatch, states: list[Tensor]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            attention(states[0], states[1], states[2], batch, Terms(scale=head**-0.5))
            times.append(time.perf_counter() - start)
        return min(times)

    best, tokens = 0, 1024
    for length in (8, 16, 32, 64, 128):
        ids = [torch.zeros(length, dtype=torch.int32).numpy()] * (tokens // length)
        batch = RaggedBatch.pack(ids, torch.device("cpu"))
        states = [torch.randn(tokens, 8, head).to(dtype).transpose(0, 1) for _ in range(3)]
        if seconds(EqualRuns(length), batch, states) >= seconds(EqualRuns(0), batch, states):
            break
        best = length
    return best
