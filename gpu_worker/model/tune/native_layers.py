"""Encoder layers that run by the processor's kernels: recognised by what they are made of and by what they compute.

A layer becomes three calls: what precedes attention, attention, and what follows it; `joined_layers` makes one call of
several layers. It is replaced only where these give what the layer itself gave in a recorded run. The gate compares the
model afterwards; where it does not pass, the layers stay as they were written.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gpu_worker.device.memory import ran_out
from gpu_worker.kernels.attention.interface import AttentionCall, AttentionTerms, OneByOne
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.tune.blocked_linear import LinearClass, PackedLinear
from gpu_worker.model.tune.layer_parts import CLOSE, LayerParts, parts_of
from gpu_worker.model.tune.layer_trace import LayerRun
from shared.errors import ModelRefused

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of a run's positions, as transformers hands them to layers."""
FAR = 1 << 20
"""A distance beyond all positions that a model was made for."""


def install_layers(
    model: nn.Module,
    library: KernelLibrary,
    runs: Mapping[nn.Module, LayerRun],
    linear: LinearClass = PackedLinear,
) -> int:
    """Makes all layers of known forms run by the kernels, in place; returns how many there are.

    `runs`: a recorded run of the model's layers. `linear`: the class of their linear layers, by default in the model's
    own number format. No layer is replaced where the kernels do not have that format.
    """
    replacements: dict[nn.Module, NativeLayer] = {}  # a layer in several places stays one
    for layer, run in runs.items():
        native = _native(layer, run, library, linear)
        if native is None:
            continue
        replacements[layer] = native
    for parent in list(model.modules()):
        for name, layer in list(parent._modules.items()) if isinstance(parent, nn.ModuleList) else ():
            if layer in replacements:
                setattr(parent, name, replacements[layer])
    return len(replacements)


def _native(layer: nn.Module, run: LayerRun, library: KernelLibrary, linear: LinearClass) -> "NativeLayer | None":
    """The same layer by the kernels, with rotary positions or without; None where none gives what it gave."""
    if len(run.terms) != 1 or any(parameter.dtype not in library.formats for parameter in layer.parameters()):
        return None
    if _reads_positions(layer, run):
        return None
    for parts in parts_of(layer):
        native = NativeLayer(parts, run.terms[0], PackedLinear)
        for native.rotated in (True, False) if "position_embeddings" in run.keywords else (False,):
            if _agrees(native, run):
                rotated = native.rotated
                if linear is not PackedLinear:
                    native = NativeLayer(parts, run.terms[0], linear)
                native.rotated = rotated
                _copy_attributes(layer, native)
                return native
    return None


def _output(layer: nn.Module, run: LayerRun, **changes: Any) -> Tensor | None:
    """What a layer gives in the recorded run with other keywords; None where it fails or gives something else."""
    call = AttentionCall(attention=OneByOne(), batch=run.keywords["ragged"].batch)
    try:
        with torch.inference_mode():
            output = layer(**{**run.keywords, "hidden_states": run.states, "ragged": call, **changes})
    except Exception as error:  # foreign code, or positions in another shape
        if ran_out(error):
            raise
        return None
    return output if isinstance(output, Tensor) and output.shape == run.states.shape else None


def _reads_positions(layer: nn.Module, run: LayerRun) -> bool:
    """Whether a layer computes with position ids beside rotary positions, as those do that scale queries of long texts.

    The gate's texts may be shorter than what it takes to see that.
    """
    positions = run.keywords.get("position_ids")
    if not isinstance(positions, Tensor):
        return False
    near, far = (_output(layer, run, position_ids=ids) for ids in (positions, positions + FAR))
    return near is None or far is None or not torch.equal(near, far)


def _agrees(candidate: nn.Module, run: LayerRun) -> bool:
    """Whether a layer gives what the recorded layer gave, row by row, as far as its number format tells."""
    expected, output = run.output, _output(candidate, run)
    if output is None or not isinstance(expected, Tensor) or expected.shape != output.shape:
        return False
    added = (expected.float() - run.states.float()).abs().amax(dim=-1)
    rounding = expected.float().abs().amax(dim=-1) * torch.finfo(expected.dtype).eps
    error = (output.float() - expected.float()).abs().amax(dim=-1)
    return bool((error <= CLOSE[expected.dtype] * added + rounding).all())


def _copy_attributes(layer: nn.Module, native: nn.Module) -> None:
    """Gives the new layer the plain attributes of the old one: some models read the kind of attention from there."""
    for name, value in vars(layer).items():
        if not name.startswith("_") and isinstance(value, str | int | float | None) and not hasattr(native, name):
            setattr(native, name, value)


def forms_of(model: nn.Module) -> str:
    """The forms of a model's layers that run by the kernels, separated by semicolons; empty where none does."""
    return "; ".join(dict.fromkeys(module.form for module in model.modules() if isinstance(module, NativeLayer)))


class Joined(Protocol):
    """What runs a layer together with its neighbours."""

    def serve(self, ragged: AttentionCall) -> bool:
        """Whether it serves this run."""

    def run(self, layer: "NativeLayer", states: Tensor, ragged: AttentionCall, rotary: Rotary | None) -> Tensor:
        """Hidden states [1, T, H] -> those behind the layer, or behind those that it runs together with."""


class NativeLayer(nn.Module):
    """A layer by the kernels, in packed runs: hidden states [1, T, H] -> the same.

    `form`: that of its parts. `rotated`: it has rotary positions. `head_dim`: numbers of a head. `key_heads`: heads of
    keys. `joined`: what runs it together with its neighbours, see `joined_layers`; None where it runs by parts.
    """

    joined: Joined | None = None

    def __init__(self, parts: LayerParts, terms: AttentionTerms, linear: LinearClass) -> None:
        """Copies the layer's weights into the layout of the class `linear`."""
        super().__init__()
        self.form, self.rotated, self.head_dim = parts.form, True, parts.head
        self.terms, self.is_causal = terms, terms.causal
        queries, keys = parts.heads
        self._heads, self.key_heads = [parts.head, queries, keys], keys
        self._activation, self._gated, self._post_normalised = parts.activation, parts.gated, parts.post_normalised
        self._inputs = linear(*parts.inputs)
        self._output, self._inner, self._down = (linear(part) for part in (parts.output, parts.inner, parts.down))
        before, *others = (norm.numbers for norm in parts.norms)
        self._input_norms = [before, *(norm.numbers for norm in parts.head_norms)]
        self._other_norms = others
        self._epsilon, self._centred = parts.norm_kind

    @property
    def kind(self) -> tuple[list[int], float, bool, int, bool, bool]:
        """What `torch.ops.selvage.layers` takes, beside the layer's numbers and the terms of its attention."""
        return self._heads, self._epsilon, self._centred, self._activation, self._gated, self._post_normalised

    @property
    def numbers(self) -> list[Tensor]:
        """Weights, biases and norms as `torch.ops.selvage.layers` takes them."""
        products = self._output, self._inner, self._down
        return [
            *(self._inputs.weight, self._inputs.bias, *self._input_norms),
            *(product.weight for product in products),
            *(product.bias for product in products),
            *self._other_norms,
        ]

    def forward(
        self,
        hidden_states: Tensor,
        *_: object,
        ragged: AttentionCall | None = None,
        position_embeddings: Rotary | None = None,
        **__: object,
    ) -> Tensor:
        """Runs the layer. Raises ModelRefused outside of packed runs."""
        if ragged is None:
            raise ModelRefused("its layers run in packed batches alone")
        if self.joined is not None and self.joined.serve(ragged):
            return self.joined.run(self, hidden_states, ragged, position_embeddings)
        x, (queries, keys) = hidden_states[0], self._heads[1:]
        states = torch.ops.selvage.attention_inputs(
            x,
            self._inputs.weight,
            self._inputs.bias,
            self._input_norms,
            self._epsilon,
            self._centred,
            self._heads,
            *(angles(position_embeddings) if self.rotated else (None, None)),
        )
        query, key, value = states.view(len(x), -1, self.head_dim).transpose(0, 1).split([queries, keys, keys])
        attended = ragged.attention(query, key, value, ragged.batch, self.terms)
        output, inner, down = self._output, self._inner, self._down
        rows: Tensor = torch.ops.selvage.feed_forward(
            x,
            attended.flatten(1),
            [output.weight, inner.weight, down.weight],
            [output.bias, inner.bias, down.bias],
            self._other_norms,
            self._epsilon,
            self._centred,
            self._activation,
            self._gated,
            self._post_normalised,
        )
        return rows[None]


def angles(rotary: Rotary | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Cosines and sines of a packed run, [1, T, width] each -> [T, width] float32; none where there are none."""
    if not rotary:
        return None, None
    cos, sin = (part[0].float().contiguous() for part in rotary)
    return cos, sin
