"""The stages between a model as it was loaded and one that serves: reference runs, the fastest way to run it that the
gate lets serve, and what texts may have of each other.

Each stage is a function. Reference runs come first, since all others change the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import relative
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model import longformer
from gpu_worker.model.beside import BesideAdapter
from gpu_worker.model.beside import install as install_adapters
from gpu_worker.model.encoder.encoder import Encoder, rotary_of_the_step
from gpu_worker.model.execution import ExecutionMode, ModeChoice, captured, reason_of
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.model.native.linear import LinearClass, PackedLinear, QuantizedLinear
from gpu_worker.model.native.model import NativeEncoder, NativeModel
from gpu_worker.model.options import LoadOptions
from gpu_worker.model.source import Source
from gpu_worker.model.tune import int8, native_linear
from gpu_worker.model.tune.graphs import with_graphs
from gpu_worker.model.tune.linear import PACKED, STOCK, pack, undoing
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.gate import HeadReference, Reference
from gpu_worker.model.verify.own_run import FUSED, Feeding
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.runs import AdapterReference, Cutting, cutting, reason_to_share_nothing
from gpu_worker.repository.fitting import LengthLimits
from shared.errors import ModelRefused

NOT_WANTED, NOT_SHARED = "--chunk-tokens is 0", "--share-prefixes is off"
"""Why no text is cut, and why none shares tokens, where the user wants it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Runs of the model's own code on the gate's texts: hidden states; logits, where it has a head; hidden states with
    each adapter, where some are served over it."""

    encoder: Reference
    heads: HeadReference | None
    adapters: AdapterReference | None

    def check_heads(self, encoder: Encoder, heads: Heads) -> None:
        """Raises ModelRefused where heads give other logits."""
        if self.heads is not None:
            self.heads.check(encoder, heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The mode that a model serves in. `linear` names how linear layers run, for the card. `formats` names formats in
    which the processor may be faster."""

    mode: ExecutionMode
    linear: str
    formats: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What texts may have of each other. `unshared`: why they share no first tokens, `other_bits`: why one may have
    other bits among others than alone; empty where they may share, and where the bits are the same."""

    cutting: Cutting
    unshared: str
    other_bits: str


def take_references(
    source: Source, limits: LengthLimits, probes: Probes, feeding: Feeding, beside: Sequence[BesideAdapter]
) -> References:
    """Runs the model as it was loaded. `beside`: the adapters that are served over it. Raises ModelRefused."""
    model = source.model
    longformer.install(model, model.base_model)
    # The encoder comes before the heads: its long text finds out models that short texts change for good.
    encoder = Reference(model.base_model, probes, feeding)
    adapters = {adapter.name: adapter.parts for adapter in beside}
    has_head = source.recipe.weights_of != "encoder"
    return References(
        encoder=encoder,
        adapters=AdapterReference(model, encoder, adapters) if adapters else None,
        heads=HeadReference(model, source.recipe, probes, limits.positions, feeding) if has_head else None,
    )


def tune(
    source: Source,
    base: Any,
    references: References,
    heads: Heads,
    limits: LengthLimits,
    options: LoadOptions,
    beside: Sequence[BesideAdapter] = (),
    longest: int = 0,
) -> Tuned:
    """Makes a model run in the fastest way that gives what its own code gives. `base`: it without its head, which may
    have been taken from it since. `longest`: most tokens of a text.

    Raises ModelRefused where there is no such way.
    """
    if beside:
        install_adapters(source.model, [adapter.parts for adapter in beside])
    tuning = _Tuning(base, source.placement, references, heads, limits)
    if options.rounded:
        mode = tuning.rounded_mode()
        _forget_layers(base, mode.encoder)
        return Tuned(mode=mode, linear=int8.NAME)
    mode, linear = tuning.exact_mode()
    if options.graphs is not None and not beside:  # graphs know no adapters
        mode = captured(mode, references.encoder, partial(with_graphs, settings=options.graphs, longest=longest))
    if not isinstance(mode.encoder, NativeEncoder):  # whose heads were compared with it
        references.check_heads(mode.encoder, heads)
    _forget_layers(base, mode.encoder)
    if references.adapters is not None:
        references.adapters.check(mode.encoder, mode.unpacked_reason)
    return Tuned(mode=mode, linear=linear, formats=tuning.faster_formats())


def verify(encoder: Encoder, heads: Heads, references: References, options: LoadOptions) -> Verified:
    """Finds out what texts may have of each other. Raises what means that memory ran out."""
    reference = references.encoder
    cut = cutting(encoder, reference) if options.cuts else Cutting(refusal=NOT_WANTED)
    unshared = reason_to_share_nothing(encoder, reference) if options.shares else NOT_SHARED
    bits = reason_for_other_bits(encoder, heads, reference.probes, cuts=cut.allowed, shares=not unshared)
    return Verified(cutting=cut, unshared=unshared, other_bits=bits)


class _Tuning:
    """The ways to run one model, the fastest first; each changes the model, and the first that passes serves."""

    def __init__(
        self, base: Any, placement: Placement, references: References, heads: Heads, limits: LengthLimits
    ) -> None:
        self._base, self._placement, self._limits = base, placement, limits
        self._references, self._reference, self._heads = references, references.encoder, heads
        self._kernels = library.load() if placement.device.type == "cpu" else KernelLibrary()

    def exact_mode(self) -> tuple[ExecutionMode, str]:
        """A mode, and how linear layers run: on a processor the whole model by its kernels where these have its family
        and the gate agrees, with all linear layers beside it; else linear layers with packed weights."""
        if self._placement.device.type != "cpu":
            return self._mode(), STOCK
        encoder, reasons = self._checked_native_encoder()
        if encoder is not None:
            return _native_mode(encoder), encoder.description
        mode, linear = self._mode_with_packed_layers()
        return replace(mode, findings=(*mode.findings, *reasons)), linear

    def rounded_mode(self) -> ExecutionMode:
        """A mode with layers in int8: compared exactly before rounding, by cosines afterwards."""
        exact, reasons = self._checked_native_encoder()
        if exact is not None:
            del exact  # before its layers are copied once more
            mode, layers = _native_mode(self._native_encoder(QuantizedLinear)), "whole layers in int8 by token"
        else:
            mode = self._mode()
            self._references.check_heads(mode.encoder, self._heads)
            layers = int8.install(self._base, self._heads.modules())
        findings = [*reasons, f"{layers}: {self._reference.check_rounded(mode.encoder)}"]
        if self._references.heads is not None:
            figures = self._references.heads.check_rounded(mode.encoder, self._heads)
            findings.append(f"logits of rounded layers: {figures}")
        return replace(mode, findings=(*mode.findings, *findings))

    def faster_formats(self) -> str:
        """A line on formats that the processor's kernels have beside float32; empty where one is in use."""
        if self._placement.dtype != torch.float32:
            return ""
        settings = ["--dtype bfloat16"] if torch.bfloat16 in self._kernels.formats else []
        settings += ["--linear int8"] if self._kernels.formats and self._references.adapters is None else []
        return f"may be faster on this processor, and rounded: {', '.join(settings)}" if settings else ""

    def _checked_native_encoder(self) -> tuple[NativeEncoder | None, list[str]]:
        """The encoder by the processor's kernels, with exact layers, and heads by them too, once both passed the gate;
        else None, heads as they were, and a line that says why, but where there are no kernels."""
        undo = undoing(nn.ModuleList(self._heads.modules()))
        try:
            encoder = self._native_encoder(PackedLinear)
            self._reference.check(encoder)
            native_linear.install(self._heads.modules(), self._kernels)
            self._references.check_heads(encoder, self._heads)
            return encoder, []
        except Exception as error:  # another transformers may make a family's parts otherwise
            reason = reason_of(error)
        undo()
        return None, [f"no whole layers by the processor's kernels: {reason}"] if self._kernels.formats else []

    def _native_encoder(self, linear: LinearClass) -> NativeEncoder:
        """The encoder by the processor's kernels, with layers of this class. Raises ModelRefused if there is none."""
        if self._references.adapters is not None:
            raise ModelRefused("adapters run over layers as transformers wrote them")
        rotary = rotary_of_the_step(self._base.config.get_text_config())
        if rotary:
            raise ModelRefused(f"rope_type {rotary} changes a text's vector with the longest text beside it")
        reference = self._reference
        native = NativeModel(self._base, self._kernels, linear, capped=reference.attention != FUSED)
        native_linear.install([native.embeddings], self._kernels)
        return NativeEncoder(native, self._kernels, self._limits.uncounted, reference.types, reference.width)

    def _mode_with_packed_layers(self) -> tuple[ExecutionMode, str]:
        """A mode with packed linear layers, and what those are; with PyTorch's own where the gate refuses these."""
        layers = nn.ModuleList([self._base, *self._heads.modules()])
        undo = undoing(layers)
        packs = pack(layers)
        try:
            return self._mode(packs=packs), PACKED if packs else STOCK
        except ModelRefused:
            if not packs or relative.installed(self._base):
                raise
        undo()  # some models amplify the last bit, so that any other rounding gives other hidden states
        mode, finding = self._mode(), "linear layers: torch, since the model does not run as its own with packed ones"
        return replace(mode, findings=(*mode.findings, finding)), STOCK

    def _mode(self, *, packs: bool = False) -> ExecutionMode:
        choice = ModeChoice(
            base=self._base,
            reference=self._reference,
            placement=self._placement,
            length_limits=self._limits,
            packs=packs,
        )
        return choice.choose()


def _forget_layers(base: Any, encoder: Encoder) -> None:
    """Gives back the memory of layers that run by the kernels: a head of transformers' classes may hold the model."""
    if isinstance(encoder, NativeEncoder):
        for layer in FAMILIES[base.config.model_type].layers(base):
            for weight in layer.parameters():
                weight.data = weight.data.new_empty(0)


def _native_mode(encoder: NativeEncoder) -> ExecutionMode:
    """The mode of an encoder by the processor's kernels."""
    native: NativeModel = encoder.model
    layers, calls = sum(native.calls), len(native.calls)
    whole = f"{layers} layers run whole by the processor's kernels: {native.forms}"
    together = f"{layers} layers run in {calls} call{'s' * (calls > 1)}"
    return ExecutionMode(encoder=encoder, findings=(whole, together) if calls < layers else (whole,))
