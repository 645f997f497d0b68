"""Makes a model that was just loaded ready to serve.

Takes the reference runs, builds the heads, chooses how the encoder runs, and compares the results with the references.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

from gpu_worker.device.memory import ran_out
from gpu_worker.kernels.attention import relative
from gpu_worker.kernels.attention.interface import OneByOne
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.fixed_order import FixedOrder
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model import longformer
from gpu_worker.model.beside import BesideAdapter
from gpu_worker.model.beside import install as install_adapters
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import (
    Capture,
    ExecutionMode,
    ModeChoice,
    captured,
    make_packed,
    takes_attention,
)
from gpu_worker.model.head_building import HeadBuilder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.joining import RECORDED, with_joined_layers
from gpu_worker.model.source import Source
from gpu_worker.model.tune import int8, native_layers, same_bits
from gpu_worker.model.tune.blocked_linear import LinearClass, PackedLinear
from gpu_worker.model.tune.int8 import QuantizedLinear
from gpu_worker.model.tune.layer_trace import LayerRun, layer_runs
from gpu_worker.model.tune.linear import PACKED, STOCK, Linear, pack, undoing
from gpu_worker.model.verify import bits
from gpu_worker.model.verify.beside import AdapterReference
from gpu_worker.model.verify.closeness import LEAST_COSINE, check_close
from gpu_worker.model.verify.feeding import Feeding
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.head_gate import HeadReference
from gpu_worker.model.verify.in_pieces import Cutting, cutting
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.shared_prefixes import reason_to_share_nothing
from gpu_worker.repository.late_reading import LengthLimits
from shared.errors import ModelRefused

NOT_WANTED, NOT_SHARED = "--chunk-tokens is 0", "--share-prefixes is off"
"""Why no text is cut, where the user wants none cut."""
Order = AbstractContextManager[object]
"""What is entered while operators run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """An encoder and heads that passed the gates.

    `linear` names how linear layers run, for the card. `notice` is what a user should know of the reference runs.
    `formats` names formats in which the processor may be faster. `head_order` is entered while heads run,
    `score_order` while scores are computed: what keeps PyTorch's operators in one order, or nothing.
    """

    mode: ExecutionMode
    heads: Heads
    linear: str
    notice: str
    formats: str
    head_order: Order
    score_order: Order
    cutting: Cutting
    unshared: str


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
        same_bits: bool = False,
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
        self._order = FixedOrder() if same_bits else None
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
            install_adapters(model, [*adapters.values()], fixed=same_bits)
            self._capture = None  # graphs know no adapters

    def run(self) -> PreparedModel:
        """Chooses how the model runs, and compares it with the references. Raises ModelRefused where it differs."""
        if self._exact:
            if self._order is not None:
                mode, linear = self._mode_of_same_bits()
            else:
                mode, linear = self._exact_mode()
        else:
            mode, linear = self._rounded_mode(), int8.NAME
        mode = with_joined_layers(mode, self._reference.probes)
        if self._adapters is not None:
            cost = self._adapters.checked(mode.encoder, mode.unpacked_reason, same_bits=self._order is not None)
            mode = replace(mode, findings=(*mode.findings, cost))
        head_order: Order = nullcontext()
        if self._order is not None:
            head_order, linear = self._checked_bits(mode.encoder), f"{linear}, same bits"
        return PreparedModel(
            mode=mode,
            heads=self._heads,
            linear=linear,
            notice=self._reference.notice,
            formats=self._faster_formats(),
            head_order=head_order,
            score_order=self._order or nullcontext(),
            cutting=cutting(mode.encoder, self._reference) if self._cuts else Cutting(refusal=NOT_WANTED),
            unshared=self._reason_to_share_nothing(mode.encoder),
        )

    def _faster_formats(self) -> str:
        """A line on formats that the processor's kernels have beside float32; empty where one is in use."""
        if not self._exact or self._placement.dtype != torch.float32:
            return ""
        settings = ["--dtype bfloat16"] if torch.bfloat16 in self._kernels.formats else []
        settings += ["--linear int8"] if self._kernels.formats and self._adapters is None else []
        return f"may be faster on this processor, and rounded: {', '.join(settings)}" if settings else ""

    def _reason_to_share_nothing(self, encoder: Encoder) -> str:
        if not self._shares:
            return NOT_SHARED
        return reason_to_share_nothing(encoder, self._reference, same_bits=self._order is not None)

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
        """A mode, and how linear layers run: whole layers by the processor's kernels where the gate lets them, and all
        other linear layers with packed weights."""
        layers = nn.ModuleList([self._base, *self._heads.modules()])
        undo = undoing(layers)  # keeps the old weights in memory until it is known whether the new layers pass
        name = f"native ({self._kernels.instructions})"
        findings: tuple[str, ...] = ()
        try:
            count = self._install_native_layers()
            if count:
                mode, others = self._mode_with_packed_layers(layers)
                forms = native_layers.forms_of(self._base)
                finding = f"{count} layers run whole by the processor's kernels: {forms}"
                return replace(mode, findings=(*mode.findings, finding)), f"{name}, others {others}"
        except ModelRefused as refused:
            undo()
            findings = (f"no {name} layers: {refused}",)
        mode, linear = self._mode_with_packed_layers(layers)
        return replace(mode, findings=(*mode.findings, *findings)), linear

    def _mode_of_same_bits(self) -> tuple[ExecutionMode, str]:
        """A mode in which no text depends on others, and how linear layers run: whole layers where the gate lets it."""
        layers = [self._base, *self._heads.modules()]
        undo, name = undoing(nn.ModuleList(layers)), f"native ({self._kernels.instructions})"
        count = self._install_native_layers()
        same_bits.install(layers)
        try:
            mode = self._mode()
        except ModelRefused:
            if not count:
                raise
            undo()  # some models amplify the last bit: as their classes are written they may pass
            same_bits.install(layers)
            mode = self._mode()
        same_bits.install(layers)  # layers that only our own encoders have; none of their bits changes
        self._check_heads(mode.encoder)
        return mode, name

    def _checked_bits(self, encoder: Encoder) -> Order:
        """The order that heads need, once all rows had the same bits alone and among others. Raises ModelRefused.

        An order that changed no operator is left off, since looking at each of them takes time.
        """
        order, encoder_order = self._order or FixedOrder(), getattr(encoder, "order", None)
        for used_order in (order, encoder_order):
            if isinstance(used_order, FixedOrder):
                used_order.used.clear()
        bits.check_heads(encoder, self._heads, self._reference.probes, order)
        if isinstance(encoder, PackedEncoder) and isinstance(encoder_order, FixedOrder) and not encoder_order.used:
            encoder.order = nullcontext()
        return order if order.used else nullcontext()

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
        mode = self._mode()
        self._check_heads(mode.encoder)
        if not mode.unpacked_reason and self._native_layers_pass(mode.encoder):
            self._install_native_layers(QuantizedLinear)
        layers = int8.install(self._base, self._heads.modules())
        if self._order is not None:
            same_bits.install([self._base, *self._heads.modules()])
        cosines = check_close(self._reference, mode.encoder)
        mode = replace(mode, findings=(*mode.findings, f"{layers}: {cosines}"))
        if self._head_reference is None:
            return mode
        order = self._order or nullcontext()
        cosine = self._head_reference.check_close(mode.encoder, self._heads, LEAST_COSINE, order)
        return replace(mode, findings=(*mode.findings, f"logits of rounded layers: cosine {cosine:.4f}"))

    def _native_layers_pass(self, encoder: Encoder) -> bool:
        """Whether the encoder's layers compute what the kernels' layers compute, before anything is rounded."""
        undo = undoing(self._base)
        try:
            if not self._install_native_layers():
                return False
            self._reference.check(encoder)
        except ModelRefused:
            return False
        finally:
            undo()
        return True

    def _install_native_layers(self, linear: LinearClass = PackedLinear) -> int:
        """Replaces the encoder's layers by those of the processor's kernels, and returns how many it replaced."""
        if not takes_attention(self._base) or not self._kernels.formats:
            return 0
        return native_layers.install_layers(self._base, self._kernels, self._layer_runs(), linear)

    def _layer_runs(self) -> Mapping[nn.Module, LayerRun]:
        """A recorded run of all layers on two short texts; empty where the model does not run packed."""
        reference = self._reference
        try:
            make_packed(self._base)
            encoder = PackedEncoder(
                self._base, OneByOne(), self._length_limits.uncounted, reference.types, reference.width
            )
            return layer_runs(encoder, reference.probes.batch(RECORDED, encoder))
        except Exception as error:  # foreign code that was not made for this fails anywhere; the gate tells why
            if ran_out(error):
                raise
            return {}

    def _mode(self, *, packs: bool = False) -> ExecutionMode:
        choice = ModeChoice(
            base=self._base,
            reference=self._reference,
            placement=self._placement,
            length_limits=self._length_limits,
            packs=packs,
            same_bits=self._order is not None,
        )
        return choice.choose()

    def _check_heads(self, encoder: Encoder) -> None:
        if self._head_reference is not None:
            self._head_reference.check(encoder, self._heads, self._order or nullcontext())
