"""How a model runs: packed where it can, else by equal length. The first way that passes the gate serves."""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_worker.device.memory import ran_out
from gpu_worker.device.placement import Placement
from gpu_worker.device.timing import device_seconds
from gpu_worker.kernels.attention import choice as attention_choice
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention import llama4, relative
from gpu_worker.kernels.attention.choice import AttentionShape
from gpu_worker.kernels.attention.equal_runs import EqualRuns, Ways
from gpu_worker.kernels.attention.hopper import Hopper
from gpu_worker.model.encoder.encoder import Encoder, rotary_of_the_step
from gpu_worker.model.encoder.equal_length import EqualLengthEncoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune.encoder_forms import FormChoice, Gate
from gpu_worker.model.tune.linear import packed_layers
from gpu_worker.model.tune.linear_choice import STOCK, LinearPlan
from gpu_worker.model.tune.merged import merge, saved_products
from gpu_worker.model.verify import reference_attention as own_attention
from gpu_worker.model.verify.gate import Reference
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import TokenTypes
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

FormFinder = Callable[[PackedEncoder, Gate], FormChoice]

LENGTHS = range(8, 40, 2)
"""Of the texts by which the cost of equal lengths is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """An encoder that passed the gate; `unpacked`: why it is not packed.

    `times`: how much longer a step takes whose texts all differ in length than one whose texts do not. `told`: what was
    found out about its attention and its forms.
    """

    encoder: Encoder
    unpacked_reason: str = ""
    times: float = 1.0
    findings: tuple[str, ...] = ()

    @property
    def notice(self) -> str:
        """What a user should know."""
        if not self.unpacked_reason:
            return ""
        cost = f"a step of {len(LENGTHS)} lengths takes {self.times:.1f} times as long as one of a single length"
        return f"texts run by equal length, not packed ({self.unpacked_reason}): {cost}"


def choose(
    base: Any,
    reference: Reference,
    placement: Placement,
    uncounted: int | None,
    token_types: TokenTypes | None,
    positions: int,
    plan: LinearPlan = STOCK,
    *,
    merging: bool = True,
) -> ExecutionMode:
    """Changes the model in place into what serves. Raises ModelRefused with the reasons of both ways.

    `plan`: how linear layers run on a processor, also those that an encoder of ours sets free. `merging`: whether they
    may be merged where that is faster.
    """
    config = base.config.get_text_config()
    if rotary_of_the_step(config) == "dynamic":
        raise ModelRefused("config.json: rope_type dynamic changes a text's vector with the longest text before it")
    try:
        packed = _packed(base, placement, uncounted, token_types, reference.width, plan, merging=merging)
        told = _checked(packed, reference)
        fewer, way = saved_products(base), _attending_fastest(packed, reference, placement)
        told += [f"{fewer} products of a step are made together with others"] if fewer else []
        return replace(way, findings=(*told, *way.findings))
    except Exception as error:  # foreign code that was not made for this fails anywhere; then the other way is tried
        unpacked = _reason(error)
    if relative.installed(base):  # its own attention is gone
        raise ModelRefused(f"{type(base).__name__}: {unpacked}")
    last = ""
    for encoder in _by_equal_length(base, token_types, reference):
        try:
            reference.check(encoder)
        except Exception as error:
            last = _reason(error)
            continue
        return ExecutionMode(encoder=encoder, unpacked_reason=unpacked, times=_cost(encoder, reference, positions))
    raise ModelRefused(f"{type(base).__name__} runs neither packed ({unpacked}) nor by equal length ({last})")


def _checked(packed: PackedEncoder, reference: Reference) -> list[str]:
    """Some models blow the last bit up: what was measured to be faster gives way to PyTorch's own attention for them.

    What there is to tell of that. Raises ModelRefused where neither runs as the reference.
    """
    faster = packed.attention
    try:
        reference.check(packed)
    except ModelRefused:
        if not isinstance(faster, EqualRuns) or faster.ways == Ways():
            raise
        packed.attention = EqualRuns(Ways())
        reference.check(packed)
        return [f"no {faster.name}: the model does not run by it as by its own"]
    return []


def in_fastest_form(way: ExecutionMode, judge: Gate, faster: FormFinder | None) -> ExecutionMode:
    """The same in the fastest form that passes. `faster` finds it; None where the device has no forms."""
    packed = way.encoder
    if faster is None or not isinstance(packed, PackedEncoder) or not packed.attention.capturable:
        return way  # layers that look at lengths are not compiled
    form = faster(packed, judge)
    return replace(way, encoder=form.encoder, findings=(*way.findings, *form.findings))


def _attending_fastest(packed: PackedEncoder, reference: Reference, placement: Placement) -> ExecutionMode:
    """With FlashAttention 3 in place of PyTorch's, on a Hopper that has it, where it is clearly faster and passes."""
    usual, way = packed.attention, ExecutionMode(encoder=packed)
    if not usual.capturable:
        return way
    shape = _shape(packed.model)
    why = attention_choice.hopper_refusal(placement.device, placement.dtype, shape)
    if why is None:
        return way
    try:
        if not why and not attention_choice.faster_than(usual, placement.device, placement.dtype, shape):
            why = f"it is not clearly faster than {usual.name}"
        if not why:
            packed.attention = Hopper()
            reference.check(packed)
            return replace(way, findings=(f"{packed.attention.name} is clearly faster than {usual.name}",))
    except Exception as error:  # a package that was made for something else fails anywhere; then the usual one serves
        packed.attention, why = usual, f"{type(error).__name__}: {first_line(error)}"
    return replace(way, findings=(f"no {Hopper.name}: {why}",))


def _shape(base: Any) -> AttentionShape:
    """What attention is measured with."""
    config = base.config.get_text_config()
    heads = int(config.num_attention_heads)
    return AttentionShape(
        head=_head_width(base),
        heads=heads,
        shared=int(getattr(config, "num_key_value_heads", None) or heads),
        causal=attention.is_causal(base),
    )


def _packed(
    base: Any,
    placement: Placement,
    uncounted: int | None,
    token_types: TokenTypes | None,
    width: int,
    plan: LinearPlan,
    *,
    merging: bool,
) -> PackedEncoder:
    """Raises ModelRefused for what is known to fail without trying."""
    config = base.config.get_text_config()
    rotary = rotary_of_the_step(config)
    if rotary:
        raise ModelRefused(f"rope_type {rotary} changes a text's vector with the longest text beside it")
    make_packed(base)
    if relative.installed(base) and plan != STOCK:
        plan.install(packed_layers(base))  # what its own classes keep for themselves, since they look at the weight
    if placement.device.type == "cuda" and merging:
        merge(base, device_seconds)
    chosen = attention_choice.choose(
        placement.device,
        placement.dtype,
        head=_head_width(base),
        causal=attention.is_causal(base),
        softcap=config._attn_implementation == attention.NAME and _capped(config),
        bias=relative.serves(config),
    )
    return PackedEncoder(base, chosen, uncounted, token_types, width)


def make_packed(base: Any) -> None:
    """Changes a model in place so that it runs from its keyword `ragged` on. Raises ModelRefused if it cannot."""
    if relative.serves(base.config):
        relative.install(base)
    elif getattr(base, "_supports_attention_backend", False):
        fused = own_attention.default_of(base) == own_attention.FUSED
        base.set_attn_implementation(attention.UNCAPPED if fused and _capped(base.config) else attention.NAME)
        llama4.install(base)
    else:
        raise ModelRefused("transformers' class takes no attention but its own")


def _capped(config: Any) -> bool:
    """Whether its scores are bounded, if its attention knows how."""
    return getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None


def _reason(error: Exception) -> str:
    """Why a way does not serve; of foreign code, the function that failed. Raises the error where memory ran out."""
    if isinstance(error, ModelRefused):
        return str(error)
    if ran_out(error):
        raise error
    innermost = deque(traceback.walk_tb(error.__traceback__), maxlen=1)[0][0]
    return f"{innermost.f_code.co_qualname} fails on such a batch: {first_line(error)}"


def _head_width(base: nn.Module) -> int:
    """Numbers of an attention head, of the widest where layers differ."""
    widths = [getattr(each, name, None) for each in base.modules() for name in ("head_dim", "attention_head_size")]
    known = [each for each in widths if isinstance(each, int) and each > 0]
    if known:
        return max(known)
    config: Any = base.config
    return int(config.hidden_size // config.num_attention_heads)


def _by_equal_length(base: Any, token_types: TokenTypes | None, reference: Reference) -> Iterator[EqualLengthEncoder]:
    """With the attention that it has by default, else with its other one, where it has two that compute the same."""
    for own in (reference.attention, own_attention.other_than(base, reference.attention)):
        if own is not None:
            own_attention.run_by(base, own)
            yield EqualLengthEncoder(base, attention=own, token_types=token_types, width=reference.width)


def _cost(encoder: Encoder, reference: Reference, positions: int) -> float:
    """See `ExecutionMode`; both steps have as many tokens."""
    several = [min(length, positions) for length in LENGTHS]
    equal = [sum(several) // len(several)] * len(several)
    return _seconds(encoder, several, reference) / _seconds(encoder, equal, reference)


def _seconds(encoder: Encoder, lengths: list[int], reference: Reference) -> float:
    """The faster of two runs."""
    filler = np.resize(reference.probes.texts[0], max(lengths))
    batch = RaggedBatch.pack([filler[:length] for length in lengths], encoder.device, types=encoder.token_types)
    found = []
    with torch.inference_mode():
        for _ in range(2):
            start = time.perf_counter()
            encoder(batch).sum().item()
            found.append(time.perf_counter() - start)
    return min(found)
