"""Makes a model that was just loaded ready to serve.

Takes the reference runs, builds the heads, chooses how the encoder runs, and compares the results with the references.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from gpu_worker.kernels.attention import relative
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model import longformer
from gpu_worker.model.beside import BesideAdapter
from gpu_worker.model.beside import install as install_adapters
from gpu_worker.model.encoder.encoder import Encoder, rotary_of_the_step
from gpu_worker.model.execution import (
    Capture,
    ExecutionMode,
    ModeChoice,
    captured,
)
from gpu_worker.model.head_building import HeadBuilder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.native.linear import LinearClass, PackedLinear, QuantizedLinear
from gpu_worker.model.native.model import NativeEncoder, NativeModel
from gpu_worker.model.source import Source
from gpu_worker.model.tune import int8, native_linear
from gpu_worker.model.tune.linear import PACKED, STOCK, Linear, pack, undoing
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.gate import HeadReference, Reference
from gpu_worker.model.verify.own_run import FUSED, Feeding
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.runs import AdapterReference, Cutting, cutting, reason_to_share_nothing
from gpu_worker.repository.fitting import LengthLimits
from shared.errors import ModelRefused

NOT_WANTED, NOT_SHARED = "--chunk-tokens is 0", "--share-prefixes is off"
"""Why no text is cut, where the user wants none cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """An encoder and heads that passed the gates.

    `linear` names how linear layers run, for the card. `notice` is what a user should know of the reference runs.
    `formats` names formats in which the processor may be faster. `other_bits` is why a text may have other bits among
    others than alone; empty where it has the same.
    """

    mode: ExecutionMode
    heads: Heads
    linear: str
    notice: str
    formats: str
    cutting: Cutting
    unshared: str
    other_bits: str


class Preparation:
    """Prepares one model, once: the constructor while the model is as it was loaded, `run` afterwards."""

    def __init__(
        self,
        source: Source,
        length_limits: LengthLimits,
        probes: Probes,
        feeding: Feeding,
        capture: Capture | None,
        linear: Linear,
        *,
        cuts: bool = True,
        shares: bool = True,
        beside: Sequence[BesideAdapter] = (),
    ) -> None:
        """Takes the reference runs, then builds the heads, which takes the model apart. Raises ModelRefused.

        `beside`: the adapters that are served over the model.
        `cuts`: whether long texts are to be cut, `shares`: whether texts are to share first tokens.
        """
        model = source.model
        self._base, self._placement, self._length_limits = model.base_model, source.placement, length_limits
        self._capture = capture
        self._kernels = library.load() if source.placement.device.type == "cpu" else KernelLibrary()
        self._exact = linear == "auto"  # packed layers cannot be rounded
        longformer.install(model, self._base)
        # The encoder comes before the heads: its long text finds out models that short texts change for good.
        self._reference = Reference(self._base, probes, feeding)
        adapters = {adapter.name: adapter.parts for adapter in beside}
        self._adapters = AdapterReference(model, self._reference, adapters) if adapters else None
        self._head_reference: HeadReference | None = None
        if source.recipe.weights_of != "encoder":
            self._head_reference = HeadReference(model, source.recipe, probes, length_limits.positions, feeding)
        width = self._reference.width
        self._heads = HeadBuilder(source.recipe, model, self._placement, source.layers, width).build()
        self._cuts, self._shares = cuts, shares
        if adapters:
            install_adapters(model, [*adapters.values()])
            self._capture = None  # graphs know no adapters

    def run(self) -> PreparedModel:
        """Chooses how the model runs, and compares it with the references. Raises ModelRefused where it differs."""
        if self._exact:
            mode, linear = self._exact_mode()
        else:
            mode, linear = self._rounded_mode(), int8.NAME
        if self._adapters is not None:
            self._adapters.check(mode.encoder, mode.unpacked_reason)
        cut = cutting(mode.encoder, self._reference) if self._cuts else Cutting(refusal=NOT_WANTED)
        unshared = reason_to_share_nothing(mode.encoder, self._reference) if self._shares else NOT_SHARED
        return PreparedModel(
            mode=mode,
            heads=self._heads,
            linear=linear,
            notice=self._reference.notice,
            formats=self._faster_formats(),
            cutting=cut,
            unshared=unshared,
            other_bits=reason_for_other_bits(
                mode.encoder, self._heads, self._reference.probes, cuts=cut.allowed, shares=not unshared
            ),
        )

    def _faster_formats(self) -> str:
        """A line on formats that the processor's kernels have beside float32; empty where one is in use."""
        if not self._exact or self._placement.dtype != torch.float32:
            return ""
        settings = ["--dtype bfloat16"] if torch.bfloat16 in self._kernels.formats else []
        settings += ["--linear int8"] if self._kernels.formats and self._adapters is None else []
        return f"may be faster on this processor, and rounded: {', '.join(settings)}" if settings else ""

    def _exact_mode(self) -> tuple[ExecutionMode, str]:
        """The fastest mode with exact linear layers, with graphs where they are, and how those layers run."""
        if self._placement.device.type == "cpu":
            mode, linear = self._mode_on_processor()
        else:
            mode, linear = self._mode(), STOCK
        mode = captured(mode, self._reference, self._capture)
        self._check_heads(mode.encoder)
        return mode, linear

    def _mode_on_processor(self) -> tuple[ExecutionMode, str]:
        """A mode, and how linear layers run: the whole model by the processor's kernels where these have its family and
        the gate agrees, with all linear layers beside it; else linear layers with packed weights."""
        try:
            encoder = self._native_encoder(PackedLinear)
            self._reference.check(encoder)
            native_linear.install(self._heads.modules(), self._kernels)
            return _native_mode(encoder), encoder.description
        except ModelRefused as refused:
            reason = f"no whole layers by the processor's kernels: {refused}"
        mode, linear = self._mode_with_packed_layers(nn.ModuleList([self._base, *self._heads.modules()]))
        return replace(mode, findings=(*mode.findings, reason)), linear

    def _native_encoder(self, linear: LinearClass) -> NativeEncoder:
        """The encoder by the processor's kernels, with layers of this class. Raises ModelRefused if there is none."""
        if self._adapters is not None:
            raise ModelRefused("adapters run over layers as transformers wrote them")
        rotary = rotary_of_the_step(self._base.config.get_text_config())
        if rotary:
            raise ModelRefused(f"rope_type {rotary} changes a text's vector with the longest text beside it")
        reference, uncounted = self._reference, self._length_limits.uncounted
        native = NativeModel(self._base, self._kernels, linear, capped=reference.attention != FUSED)
        native_linear.install([native.embeddings], self._kernels)
        return NativeEncoder(native, self._kernels, uncounted, reference.types, reference.width)

    def _mode_with_packed_layers(self, layers: nn.ModuleList) -> tuple[ExecutionMode, str]:
        """A mode with packed linear layers, and what those are; with PyTorch's own where the gate refuses these."""
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

    def _rounded_mode(self) -> ExecutionMode:
        """A mode with layers in int8: compared exactly before rounding, by cosines afterwards."""
        try:
            exact = self._native_encoder(PackedLinear)
            self._reference.check(exact)
            native_linear.install(self._heads.modules(), self._kernels)
            self._check_heads(exact)
            mode, layers = _native_mode(self._native_encoder(QuantizedLinear)), "whole layers in int8 by token"
        except ModelRefused:
            mode = self._mode()
            self._check_heads(mode.encoder)
            layers = int8.install(self._base, self._heads.modules())
        figures = self._reference.check_rounded(mode.encoder)
        mode = replace(mode, findings=(*mode.findings, f"{layers}: {figures}"))
        if self._head_reference is None:
            return mode
        figures = self._head_reference.check_rounded(mode.encoder, self._heads)
        return replace(mode, findings=(*mode.findings, f"logits of rounded layers: {figures}"))

    def _mode(self, *, packs: bool = False) -> ExecutionMode:
        choice = ModeChoice(
            base=self._base,
            reference=self._reference,
            placement=self._placement,
            length_limits=self._length_limits,
            packs=packs,
        )
        return choice.choose()

    def _check_heads(self, encoder: Encoder) -> None:
        if self._head_reference is not None:
            self._head_reference.check(encoder, self._heads)


def _native_mode(encoder: NativeEncoder) -> ExecutionMode:
    """The mode of an encoder by the processor's kernels."""
    native: NativeModel = encoder.model
    layers, calls = sum(native.calls), len(native.calls)
    whole = f"{layers} layers run whole by the processor's kernels: {native.forms}"
    together = f"{layers} layers run in {calls} call{'s' * (calls > 1)}"
    return ExecutionMode(encoder=encoder, findings=(whole, together) if calls < layers else (whole,))
