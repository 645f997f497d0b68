"""The execution mode of a model by the layers of its own class: packed, or else by equal length. The first mode that
passes the gate serves."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import choice as attention_choice
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention import relative, states
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.native_attention import NativeAttention
from gpu_worker.model.encoder.encoder import Encoder, EqualLengthEncoder, rotary_of_the_step
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.tune.linear import STOCK, pack
from gpu_worker.model.tune.merged import merge, saved_products, separate
from gpu_worker.model.verify import own_run
from gpu_worker.model.verify.gate import AdapterReference, HeadReference, Reference, reason_of
from shared.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Untuned:
    """A model as it was loaded, `base`, without its head; `heads`, which may have been taken from it; and the runs of
    its own code that it is compared with: `reference`, `of_heads` where it has a head, `of_adapters` where some are
    served over it. `uncounted` is as in `Encoder`."""

    base: Any
    heads: Heads
    reference: Reference
    placement: Placement
    uncounted: int | None
    of_heads: HeadReference | None = None
    of_adapters: AdapterReference | None = None

    def check_heads(self, encoder: Encoder) -> None:
        """Raises ModelRefused where heads give other logits."""
        if self.of_heads is not None:
            self.of_heads.check(encoder, self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """An encoder that passed the gate. `linear` names how its linear layers run, for the card. `findings` are lines for
    the log about its layers, its attention and its graphs.
    """

    encoder: Encoder
    linear: str = STOCK
    findings: tuple[str, ...] = ()

    @property
    def notice(self) -> str:
        """What a user should know about the mode."""
        reason, slower = self.encoder.unpacked_reason, "steps of many lengths take longer than those of one"
        return f"texts run by equal length, not packed ({reason}): {slower}" if reason else ""

    def with_findings(self, *findings: str) -> "ExecutionMode":
        """Makes the same mode with further lines for the log."""
        return replace(self, findings=(*self.findings, *findings))


def choose_mode(model: Untuned, *, packs: bool = False) -> ExecutionMode:
    """Chooses the mode of a model by the layers of its own class: packed where it can run so, else by equal length.
    Changes the model in place into what serves. `packs`: linear layers are packed, also those that an encoder of ours
    makes replaceable. Raises ModelRefused with the reasons of both modes."""
    base = model.base
    if rotary_of_the_step(base.config.get_text_config()) == "dynamic":
        raise ModelRefused("config.json: rope_type dynamic changes a text's vector with the longest text before it")
    try:
        return _packed_mode(model, _packed_encoder(model, packs))
    except Exception as error:  # foreign code that was not made for this fails anywhere; then equal length is tried
        reason = reason_of(error)
    if relative.installed(base):  # its own attention is gone
        raise ModelRefused(f"{type(base).__name__}: {reason}")
    return _equal_length_mode(base, model.reference, reason)


def _packed_encoder(model: Untuned, packs: bool) -> PackedEncoder:
    """Changes the model in place so that it runs packed. Raises ModelRefused for what would surely fail."""
    base, reference, placement = model.base, model.reference, model.placement
    config = base.config.get_text_config()
    check_rotary(base)
    make_packed(base)
    if relative.installed(base) and packs:
        # Layers that the model's own classes look into could not be replaced before; ours do not look into them.
        pack(base)
    if placement.device.type == "cuda":
        merge(base)
    attention_kernel = attention_choice.choose(
        placement.device,
        placement.dtype,
        head=_head_width(base),
        softcap=config._attn_implementation == attention.NAME and _capped(config),
        bias=relative.serves(config),
    )
    return PackedEncoder(base, attention_kernel, model.uncounted, reference.types, reference.width)


def _packed_mode(model: Untuned, encoder: PackedEncoder) -> ExecutionMode:
    """Tries the packed mode: where it does not pass by the processor's kernel, by PyTorch's attention; where not with
    merged layers, with these taken apart, since some models amplify the last bit. Raises ModelRefused where it passes
    in no way."""
    base, faster, findings = model.base, encoder.attention, list[str]()
    try:
        model.reference.check(encoder)
    except ModelRefused:
        if isinstance(faster, NativeAttention):
            encoder.attention = EqualRuns()
            findings.append(f"no {faster.name}: the model does not run by it as by its own")
        elif saved_products(base):
            separate(base)
            findings.append("no merged products: the model does not run by them as by its own")
        else:
            raise
        model.reference.check(encoder)
    fewer, missing = saved_products(base), attention_choice.missing_kernels(model.placement.device)
    findings += [missing] if missing else []
    findings += [f"{fewer} products of a step are made together with others"] if fewer else []
    return ExecutionMode(encoder=encoder, findings=tuple(findings))


def _equal_length_mode(base: Any, reference: Reference, unpacked_reason: str) -> ExecutionMode:
    """Tries the mode by equal length: by the model's default attention, or by its other one, if it has two that compute
    the same and only that passes. Raises ModelRefused."""
    states.remove(base)
    default, reason = reference.attention, ""
    for implementation in (default, own_run.other_than(base, default)):
        if implementation is None:
            continue
        own_run.run_by(base, implementation)
        encoder = EqualLengthEncoder(
            base,
            attention=implementation,
            token_types=reference.types,
            width=reference.width,
            unpacked_reason=unpacked_reason,
        )
        try:
            reference.check(encoder)
        except Exception as error:
            reason = reason_of(error)
            continue
        return ExecutionMode(encoder=encoder)
    raise ModelRefused(f"{type(base).__name__} runs neither packed ({unpacked_reason}) nor by equal length ({reason})")


def check_rotary(base: Any) -> None:
    """Raises ModelRefused where positions depend on the longest text of a step."""
    if rotary := rotary_of_the_step(base.config.get_text_config()):
        raise ModelRefused(f"rope_type {rotary} changes a text's vector with the longest text beside it")


def make_packed(base: Any) -> None:
    """Changes a model in place so that it attends as its keyword `ragged` says. Raises ModelRefused if it cannot."""
    if relative.serves(base.config):
        relative.install(base)
    elif _attends_as_llama_4(base.config.get_text_config()):  # texts of the gate may be too short to show it
        raise ModelRefused("its layers attend in chunks, or scale queries by their place in a run")
    elif states.install(base) or getattr(base, "_supports_attention_backend", False):
        fused = own_run.default_of(base) == own_run.FUSED
        base.set_attn_implementation(attention.UNCAPPED if fused and _capped(base.config) else attention.NAME)
    else:
        raise ModelRefused("transformers' class takes no attention but its own")


def _attends_as_llama_4(config: Any) -> bool:
    """Whether layers attend in chunks, which transformers tells by its mask only, or temper attention
    (arXiv:2501.19399), for which Llama 4's class counts the tokens of the whole run."""
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    return chunked or bool(getattr(config, "attn_temperature_tuning", False))


def _capped(config: Any) -> bool:
    """Whether the config bounds attention scores (softcap)."""
    return getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None


def _head_width(base: nn.Module) -> int:
    """Reads the width of an attention head; of the widest where layers differ."""
    names = ("head_dim", "attention_head_size")
    attributes = [getattr(module, name, None) for module in base.modules() for name in names]
    widths = [width for width in attributes if isinstance(width, int) and width > 0]
    if widths:
        return max(widths)
    config: Any = base.config
    return int(config.hidden_size // config.num_attention_heads)
