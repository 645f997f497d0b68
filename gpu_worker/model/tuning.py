"""The stages between a model as it was loaded and one that serves: reference runs, the fastest way to run it that the
gate lets serve, and what texts may have of each other.

Each stage is a function. Reference runs come first, since all others change the model. Of the ways to run it the
fastest comes first; each changes the model, and the first that passes serves.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gpu_worker.kernels.attention import relative
from gpu_worker.kernels.attention.states import KEEPS_STATES
from gpu_worker.kernels.cpu import library
from gpu_worker.model.encoder.encoder import Encoder, Run
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import ExecutionMode, Untuned, check_rotary, choose_mode
from gpu_worker.model.heads.building import HeadBuilder
from gpu_worker.model.model import Model
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.model.native.native_model import NativeEncoder, NativeModel
from gpu_worker.model.native.packed_linear import LinearClass, PackedLinear, QuantizedLinear
from gpu_worker.model.served_adapters import ServedAdapter, install_adapters
from gpu_worker.model.source import LoadOptions, Source
from gpu_worker.model.tune.graphs import Bucket, GraphSettings, with_graphs
from gpu_worker.model.tune.linear import INT8, PACKED, STOCK, install_int8, install_native, pack, undoing
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.gate import (
    Reference,
    reason_of,
    take_adapter_reference,
    take_head_reference,
    take_reference,
)
from gpu_worker.model.verify.own_run import FUSED, Feeding
from gpu_worker.model.verify.piece_check import kept_bytes, reason_for_whole_texts
from gpu_worker.model.verify.probes import Probes
from gpu_worker.repository.fitting import LengthLimits
from shared.errors import ModelRefused

NOT_WANTED = "--chunk-tokens is 0"
"""Why no text is cut where the user wants it so."""
ACCELERATED = "texts share first tokens on processors only"
"""An H200 took twice the time for texts that share two fifths of their tokens."""


def take_references(
    source: Source, limits: LengthLimits, probes: Probes, feeding: Feeding, adapters: Sequence[ServedAdapter]
) -> Untuned:
    """Runs the model as it was loaded, with each adapter that is served over it; then takes heads from it, and puts
    these adapters over it. Raises ModelRefused."""
    model, recipe = source.model, source.recipe
    if type(model).__name__ == "LongformerForSequenceClassification":
        model.base_model.register_forward_pre_hook(_attend_to_the_first_token, with_kwargs=True)
    base, updates = model.base_model, {adapter.names[0]: adapter.updates for adapter in adapters}
    # The encoder comes before the heads: its long text finds out models that short texts change for good.
    reference = take_reference(base, probes, feeding)
    of_adapters = take_adapter_reference(model, reference, updates) if updates else None
    has_head = recipe.weights_of != "encoder"
    of_heads = take_head_reference(model, recipe, reference, limits.positions) if has_head else None
    heads = HeadBuilder(recipe, model, source.placement, source.layers, reference.width).build()
    if adapters:
        install_adapters(model, adapters)
    return Untuned(
        base=base,
        heads=heads,
        reference=reference,
        of_heads=of_heads,
        of_adapters=of_adapters,
        placement=source.placement,
        uncounted=limits.uncounted,
    )


def tune(model: Untuned, options: LoadOptions, longest: int) -> ExecutionMode:
    """Makes a model run in the fastest way that gives what its own code gives. `longest`: most tokens of a text.

    Raises ModelRefused where there is no such way.
    """
    if options.rounded:
        mode = _rounded_mode(model)
        _forget_layers(model.base, mode.encoder)
        return mode
    mode = _exact_mode(model)
    if options.graphs is not None and model.of_adapters is None:  # graphs know no adapters
        mode = _mode_with_graphs(mode, model.reference, options.graphs, longest)
    if not isinstance(mode.encoder, NativeEncoder):  # whose heads were compared with it
        model.check_heads(mode.encoder)
    _forget_layers(model.base, mode.encoder)
    if model.of_adapters is not None:
        model.of_adapters.check(mode.encoder)
    return mode


def verify(model: Model, reference: Reference, options: LoadOptions) -> Model:
    """Tests whether texts may run in pieces, share tokens, and have the same bits in any batch.

    Raises an error that means that memory ran out.
    """
    encoder = model.encoder
    reason = reason_for_whole_texts(encoder, reference)
    whole_texts = reason if options.cuts else NOT_WANTED
    alone = KEEPS_STATES if encoder.as_written.keeps_states else reason
    unshared = alone if encoder.device.type == "cpu" else ACCELERATED
    bits = reason_for_other_bits(encoder, model.heads, reference.probes, pieces=not reason)
    token_bytes, state_bytes = (0, 0) if whole_texts else kept_bytes(encoder, reference)
    return replace(
        model,
        whole_texts=whole_texts,
        token_bytes=token_bytes,
        state_bytes=state_bytes,
        unshared=unshared,
        other_bits=bits,
    )


def _attend_to_the_first_token(_: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Adds Longformer's mask of global attention, from and to the first token (arXiv:2004.05150, section 3.1), to the
    inputs of a forward, as a hook before it. The class of the classifier asks its encoder for it; an encoder that runs
    without this class gets it here."""
    if keywords.get("global_attention_mask") is not None:  # the classifier's own class has set it
        return arguments, keywords
    mask = torch.zeros_like(keywords["input_ids"])
    mask[:, 0] = 1
    return arguments, keywords | {"global_attention_mask": mask}


def _exact_mode(model: Untuned) -> ExecutionMode:
    """On a processor the whole model by its kernels where these have its family and the gate agrees, with all linear
    layers beside it; else its class, with packed linear layers."""
    if model.placement.device.type != "cpu":
        return choose_mode(model)
    encoder, reasons = _checked_native_encoder(model)
    if encoder is not None:
        return _native_mode(encoder)
    return _mode_with_packed_layers(model).with_findings(*reasons)


def _rounded_mode(model: Untuned) -> ExecutionMode:
    """Makes a mode with layers in int8: compared exactly before rounding, by cosines afterwards."""
    exact, reasons = _checked_native_encoder(model)
    if exact is not None:
        del exact  # before its layers are copied once more
        mode, layers = _native_mode(_native_encoder(model, QuantizedLinear)), "whole layers in int8 by token"
    else:
        mode = choose_mode(model)
        model.check_heads(mode.encoder)
        layers = install_int8(model.base, model.heads.modules())
    findings = [*reasons, f"{layers}: {model.reference.check_rounded(mode.encoder)}"]
    if model.of_heads is not None:
        figures = model.of_heads.check_rounded(mode.encoder, model.heads)
        findings.append(f"logits of rounded layers: {figures}")
    return replace(mode, linear=INT8).with_findings(*findings)


def _checked_native_encoder(model: Untuned) -> tuple[NativeEncoder | None, list[str]]:
    """Makes the encoder by the processor's kernels, with exact layers, and heads by them too, once both passed the
    gate; else None, heads as they were, and a line that says why, but where there are no kernels."""
    kernels, heads = library.load(), model.heads.modules()
    undo = undoing(nn.ModuleList(heads))
    try:
        encoder = _native_encoder(model, PackedLinear)
        model.reference.check(encoder)
        install_native(heads, kernels)
        model.check_heads(encoder)
        return encoder, []
    except Exception as error:  # another transformers may build a family otherwise
        reason = reason_of(error)
    undo()
    return None, [f"no whole layers by the processor's kernels: {reason}"] if kernels.formats else []


def _native_encoder(model: Untuned, linear: LinearClass) -> NativeEncoder:
    """Makes the encoder by the processor's kernels, with layers of this class. Raises ModelRefused if there is none."""
    if model.of_adapters is not None:
        raise ModelRefused("adapters run over layers as transformers wrote them")
    check_rotary(model.base)
    kernels, reference = library.load(), model.reference
    native = NativeModel(model.base, kernels, linear, capped=reference.attention != FUSED)
    install_native([native.embeddings], kernels)
    return NativeEncoder(native, kernels, model.uncounted, reference.types, reference.width)


def _native_mode(encoder: NativeEncoder) -> ExecutionMode:
    """Makes the mode of an encoder by the processor's kernels."""
    native: NativeModel = encoder.model
    layers, calls = sum(native.calls), len(native.calls)
    forms = f"{layers} layers run whole by the processor's kernels: {native.forms}"
    joined_calls = f"{layers} layers run in {calls} call{'s' * (calls > 1)}"
    findings = (forms, joined_calls) if calls < layers else (forms,)
    return ExecutionMode(encoder=encoder, linear=encoder.description, findings=findings)


def _forget_layers(base: Any, encoder: Encoder) -> None:
    """Gives back the memory of layers that run by the kernels: a head of transformers' classes may hold the model."""
    if isinstance(encoder, NativeEncoder):
        for layer in FAMILIES[base.config.model_type].layers(base):
            for weight in layer.parameters():
                weight.data = weight.data.new_empty(0)


def _mode_with_packed_layers(model: Untuned) -> ExecutionMode:
    """Makes a mode with packed linear layers; with PyTorch's own where the gate refuses these."""
    layers = nn.ModuleList([model.base, *model.heads.modules()])
    undo = undoing(layers)
    packs = pack(layers)
    try:
        return replace(choose_mode(model, packs=packs), linear=PACKED if packs else STOCK)
    except ModelRefused:
        if not packs or relative.installed(model.base):
            raise
    undo()  # some models amplify the last bit, so that any other rounding gives other hidden states
    finding = "linear layers: torch, since the model does not run as its own with packed ones"
    return choose_mode(model).with_findings(finding)


def _mode_with_graphs(
    mode: ExecutionMode, reference: Reference, settings: GraphSettings, longest: int
) -> ExecutionMode:
    """Makes the same mode with graphs, as far as they pass."""
    packed = mode.encoder
    if not isinstance(packed, PackedEncoder) or not packed.attention.capturable or packed.keeps_states:
        return mode  # what looks at lengths cannot be captured

    def check(size: Bucket, run: Run) -> None:
        texts = reference.probes.one_launch_batch(size.tokens, size.sequences, size.longest)
        reference.check(packed, texts, run)

    encoder, findings = with_graphs(packed, check, settings, longest)
    return replace(mode, encoder=encoder).with_findings(*findings)
