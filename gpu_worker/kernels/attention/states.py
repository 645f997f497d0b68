"""Layers that keep a state from token to token, over packed sequences: short convolutions, gated delta rules
(arXiv:2412.06464), and Mamba-2's state spaces (arXiv:2405.21060).

A layer of transformers calls the functions of its module by their names, and hands the step's batch on to them as the
keyword `ragged`. `install` gives every layer that calls one of RAGGED a forward that calls ours. They compute chunk by
chunk, as transformers does, but a chunk may hold several sequences: no token reads another sequence's tokens, and a
state goes on into the next chunk only where its sequence does. The cache of a sequence in pieces keeps the states that
its next piece begins with; a convolution's are the last numbers that it read.
"""

from collections.abc import Callable, Iterator
from inspect import unwrap
from math import isfinite
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import REACH, AttentionCall
from gpu_worker.ragged.chunks import Chunks
from gpu_worker.ragged.pieces import Piece, SequenceCache
from shared.errors import ModelRefused

BLOCK_SCORES = 1 << 18
"""Scores that a processor computes at once: larger blocks fall out of its cache."""
KEEPS_STATES = "its layers keep a state from token to token"
"""Why texts that begin alike are computed apart: the cache of another text has their keys and values, but no state."""


def convolve(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The causal convolution of transformers, `original`, inside each sequence of a packed batch: [1, W, T] -> the
    same. Only the first tokens of a sequence reach back into the one before; these are computed again."""

    def convolved(
        states: Tensor, weight: Tensor, *terms: Any, ragged: AttentionCall | None = None, **options: Any
    ) -> Tensor:
        call = _call(ragged)
        first = call.beginnings
        if weight.shape[-1] > REACH + 1:
            raise ModelRefused(f"a convolution reaches back over {weight.shape[-1] - 1} tokens, at most {REACH} can be")
        output = original(states, weight, *terms, **options)
        beginnings = states[0][:, first.rows].transpose(0, 1)
        before = _history(call, states[0])
        if before is not None:
            beginnings = torch.cat([before, beginnings], dim=2)
        again = original(beginnings, weight, *terms, **options)[..., -REACH:]
        output[0].index_copy_(1, first.places, again.transpose(0, 1).flatten(1)[:, first.numbers])
        return output

    return convolved


def _history(call: AttentionCall, states: Tensor) -> Tensor | None:
    """Reads the REACH numbers before each sequence [S, W, REACH], zeros where it begins, and keeps the last ones of
    each piece for the next; `states` [W, T] are the batch's. None where it has no pieces."""
    pieces = call.batch.pieces
    if not pieces:
        return None
    number, whole = next(call.numbers), len(call.batch.lengths) - len(pieces)
    before = states.new_zeros(len(call.batch.lengths), states.shape[0], REACH)
    for place, (piece, rows) in enumerate(zip(pieces, call.batch.piece_rows(), strict=True), whole):
        if piece.start:
            before[place] = _cache_of(piece).state(number, piece.start)
        behind = torch.cat([before[place], states[:, rows][:, -REACH:]], dim=1)[:, -REACH:].contiguous()
        _cache_of(piece).keep_state(number, piece.start, piece.stop, behind)
    return before


def delta_rule(_: Callable[..., Any]) -> Callable[..., Any]:
    """The gated delta rule inside each sequence: query, key [1, T, G, D], value [1, T, H, P], the decays' logarithms
    `g` and `beta` [1, T, H] -> [1, T, H, P], and no state."""

    def ruled(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        ragged: AttentionCall | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        heads, width = value.shape[2], query.shape[3]
        q, k = (states[0].float().repeat_interleave(heads // states.shape[2], dim=1) for states in (query, key))
        if use_qk_l2norm_in_kernel:
            q, k = (states * (states.pow(2).sum(dim=-1, keepdim=True) + 1e-6).rsqrt() for states in (q, k))
        output = scan(q * width**-0.5, k, value[0].float()[:, :, None], g[0][..., None], _call(ragged), beta[0].float())
        return output[:, :, 0].to(value.dtype)[None], None

    return ruled


def state_space(_: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba-2's state space inside each sequence: x [1, T, H, P], dt [1, T, H], A [H], B and C [1, T, G, D] ->
    [1, T, H, P] float32."""

    def scanned(
        x: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803, the names of the paper and of transformers
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        *,
        D: Tensor | None = None,  # noqa: N803
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        ragged: AttentionCall | None = None,
        **_: Any,
    ) -> Tensor:
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)[0].float()
        groups, values = B.shape[2], x[0].float()
        by_group = (values * dt[..., None]).unflatten(1, (groups, -1))
        decay = (A.float() * dt).unflatten(1, (groups, -1))
        output = scan(C[0].float(), B[0].float(), by_group, decay, _call(ragged)).flatten(1, 2)
        return (output if D is None else output + D[:, None] * values)[None]

    return scanned


def scan(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, call: AttentionCall, beta: Tensor | None = None
) -> Tensor:
    """Linear attention with decay inside each sequence: query, key [T, G, D], value [T, G, R, P] of R heads that share
    a group's queries and keys, decays' logarithms [T, G, R] -> [T, G, R, P], all float32.

    A head's state S [D, P] is, token by token, exp(decay) S + key (x) value, and the output is query S. With `beta`
    [T, G], for R = 1, it is the delta rule: what is written in place of a value is beta (value - key exp(decay) S). A
    piece begins with the state that its cache has, and leaves its own there.

    A token whose numbers are not finite counts as zeros and gets NaN: other sequences are masked by factors of 0, and 0
    times such a number is NaN.
    """
    chunks, pieces = call.chunks, call.batch.pieces
    layer = next(call.numbers) if pieces else 0
    groups, heads, width = value.shape[1:]
    inputs = [query, key, value, decay, *([] if beta is None else [beta])]
    broken: Tensor | None = None
    # An accelerator would have to be waited for. Sums are not finite where a number is not, and take a thirtieth of the
    # time of a look at each.
    if value.device.type != "cpu" or not all(isfinite(states.sum().item()) for states in inputs):
        broken = ~torch.stack([torch.isfinite(states).flatten(1).all(dim=1) for states in inputs]).all(dim=0)
        inputs = [states.masked_fill(broken.view(-1, *[1] * (states.dim() - 1)), 0.0) for states in inputs]
        query, key, value, decay = inputs[:4]
        beta = None if beta is None else inputs[4]
    all_q, all_k = (chunks.filled(states).transpose(1, 2) for states in (query, key))
    all_v, all_decays = chunks.filled(value).permute(0, 2, 3, 1, 4), chunks.filled(decay).permute(0, 2, 3, 1)
    all_betas = None if beta is None else chunks.filled(beta).transpose(1, 2)[..., None]
    output = value.new_empty(chunks.count, chunks.size, groups, heads, width)
    state = value.new_empty(0)
    for block in _blocks(chunks, groups * heads, value.device):
        q, k, v = (states[block].contiguous() for states in (all_q, all_k, all_v))
        keys = k.transpose(-1, -2)
        weights, entering, leaving = _decays(all_decays[block], chunks, block)
        scores, corrections = (q @ keys)[:, :, None] * weights, None
        if all_betas is not None:
            k = k * all_betas[block]
            # One solution of the triangular system makes all updates of a chunk (arXiv:2412.06464, section 3.3).
            right = torch.cat([v[:, :, 0] * all_betas[block], k * entering[:, :, 0, :, None]], dim=-1)
            system = (k @ keys) * weights[:, :, 0]
            solution = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
            v, corrections = solution[:, :, None, :, :width], solution[..., width:]
        for place, number in enumerate(range(chunks.count)[block]):
            values, past = v[place], None
            if number in chunks.first and chunks.reads[number]:
                piece = pieces[chunks.first[number]]
                state = _cache_of(piece).state(layer, piece.start)
            if chunks.reads[number]:
                if corrections is not None:
                    values = values - (corrections[place] @ state)[:, None]
                past = (q[place] @ state).unflatten(-1, (heads, width)) * entering[place].transpose(1, 2)[..., None]
            rows = (scores[place] @ values).transpose(1, 2)
            output[number] = (rows if past is None else rows + past).transpose(0, 1)
            if number in chunks.last or chunks.reads[number + 1 : number + 2] == (True,):
                written = (values * leaving[place][..., None]).transpose(1, 2).flatten(2)
                added = keys[place] @ written
                if chunks.passes[number]:
                    added += state * entering[place, ..., -1].repeat_interleave(width, dim=1)[:, None]
                state = added
            if number in chunks.last:
                piece = pieces[chunks.last[number]]
                _cache_of(piece).keep_state(layer, piece.start, piece.stop, state)
    rows = chunks.rows(output)
    return rows if broken is None else rows.masked_fill(broken[:, None, None, None], float("nan"))


def _decays(decay: Tensor, chunks: Chunks, block: slice) -> tuple[Tensor, Tensor, Tensor]:
    """What is left, from decays' logarithms [n, G, R, L] of some chunks: of token j at token i [n, G, R, L, L], of the
    state that enters a chunk at each token, and of each token in the state that leaves [n, G, R, L]; 0 between
    different sequences."""
    # In float32, differences of large sums would lose the decays of single tokens.
    total = decay.double().cumsum(dim=-1)
    between = (total[..., :, None] - total[..., None, :]).float()
    weights = between.masked_fill_(~chunks.pairs[block, None, None], float("-inf")).exp_()
    entering = total.exp().float() * chunks.enters[block, None, None]
    leaving = (total[..., -1:] - total).exp().float() * chunks.leaves[block, None, None]
    return weights, entering, leaving


def _blocks(chunks: Chunks, heads: int, device: torch.device) -> Iterator[slice]:
    """Neighbouring chunks that are computed together."""
    at_once = chunks.count if device.type != "cpu" else max(1, BLOCK_SCORES // (heads * chunks.size**2))
    for start in range(0, chunks.count, at_once):
        yield slice(start, min(start + at_once, chunks.count))


def _call(ragged: AttentionCall | None) -> AttentionCall:
    """The call that a layer hands on. Raises ModelRefused where it does not."""
    if ragged is None:
        raise ModelRefused("its layers do not hand the batch on to their states")
    return ragged


def _cache_of(piece: Piece) -> SequenceCache:
    """The cache of a piece. Raises ModelRefused where the text begins like another one instead."""
    if piece.cache is None or piece.cache.beginning:
        raise ModelRefused(KEEPS_STATES)
    return piece.cache


RAGGED: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "causal_conv1d_fn": convolve,
    "torch_chunk_gated_delta_rule": delta_rule,
    "mamba2_chunk_scan": state_space,
}
"""Transformers' names of what is computed inside each sequence, with what makes ours of theirs."""
MIXING = ("mamba_selective_scan", "chunk_kimi_delta_attention")
"""Transformers' names of states that have no packed form here."""
WITHOUT_ATTENTION = {"conv", "linear_attention", "mamba", "mlp", "moe"}
"""Transformers' names of layers that do not attend, in models some of whose layers keep a state."""


def layers(model: nn.Module) -> list[tuple[nn.Module, FunctionType]]:
    """Finds the layers that call one of RAGGED, with the forwards of their classes."""
    forwards = [(layer, unwrap(type(layer).forward)) for layer in model.modules()]
    return [
        (layer, forward)
        for layer, forward in forwards
        if isinstance(forward, FunctionType) and not RAGGED.keys().isdisjoint(forward.__code__.co_names)
    ]


def install(model: nn.Module) -> bool:
    """Changes a model in place so that its layers keep no state from one sequence of a batch to the next. Returns
    whether it has such layers. Raises ModelRefused where a layer has another state, too."""
    for layer, forward in layers(model):
        for name in MIXING:
            if name in forward.__code__.co_names:
                raise ModelRefused(f"its layers keep a state ({name}) across the texts of a batch")
        replaced = {
            name: make(forward.__globals__[name]) for name, make in RAGGED.items() if name in forward.__globals__
        }
        packed = FunctionType(
            forward.__code__,
            forward.__globals__ | replaced,
            forward.__name__,
            forward.__defaults__,
            forward.__closure__,
        )
        packed.__kwdefaults__ = forward.__kwdefaults__
        layer.forward = MethodType(packed, layer)
    return bool(layers(model))


def remove(model: nn.Module) -> None:
    """Gives layers that `install` changed the forwards of their classes again."""
    for layer, _ in layers(model):
        layer.__dict__.pop("forward", None)
