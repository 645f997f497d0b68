"""A whole model by the processor's kernels: embeddings, layers and the last normalisation, as `families` lists them.

Layers of one kind that follow one another run in one call: between two layers of a short text the interpreter, and
threads that fell asleep, would take a fifth to two fifths of the time. A token's states have the same bits whatever
other sequences are in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.native.families import FAMILIES, EmbeddingNames
from gpu_worker.model.native.native_layers import Layer, LayerKind
from gpu_worker.model.native.packed_linear import LinearClass, PackedLinear
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import SlotTable
from gpu_worker.ragged.texts import TokenTypes
from shared.errors import ModelRefused

Angles = tuple[Tensor, Tensor]
"""Cosines and sines [T, width] float32 of a batch's positions."""
ALL_TYPES = ""
"""Key of the rotary positions of a model whose layers all have the same ones."""


class Embeddings(nn.Module):
    """A batch's ids, positions and token types -> hidden states [T, H] before the first layer."""

    def __init__(self, base: Any, names: EmbeddingNames) -> None:
        super().__init__()
        self.words: nn.Embedding = attrgetter(names.words)(base)
        self.types: nn.Embedding | None = _part_of(base, names.types)
        self.positions: nn.Embedding | None = _part_of(base, names.positions)
        self.tasks: nn.Embedding | None = _part_of(base, names.tasks)
        self.norm: nn.Module | None = _part_of(base, names.norm)
        self.projection: nn.Module | None = _part_of(base, names.projection)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Adds the rows of all tables, normalises them and changes their width, as far as the model does."""
        states: Tensor = self.words(batch.ids[0])
        if self.types is not None:
            types = batch.token_types
            states = states + (self.types.weight[0] if types is None else F.embedding(types[0], self.types.weight))
        if self.positions is not None:
            states = states + F.embedding(batch.positions[0], self.positions.weight)
        if self.tasks is not None:
            states = states + self.tasks.weight[0]
        states = states if self.norm is None else self.norm(states)
        return states if self.projection is None else self.projection(states)


def _part_of(base: Any, name: str) -> Any:
    """Finds a part of a model; None where its family has none, or this model."""
    try:
        return attrgetter(name)(base) if name else None
    except AttributeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Layers that run in one call. `angles`: the key of their rotary positions, None for layers without."""

    numbers: list[Tensor]
    count: int
    kind: LayerKind
    terms: AttentionTerms
    angles: str | None

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> "_Call":
        first, numbers = layers[0], [numbers for layer in layers for numbers in layer.numbers]
        return cls(numbers=numbers, count=len(layers), kind=first.kind, terms=first.terms, angles=first.angles)


class NativeModel(nn.Module):
    """An encoder by the kernels, made from a transformers model, which it leaves as it is and shares embeddings with.

    `forms`: those of its layers, for log and pages. `causal`: no token attends to later ones.
    """

    def __init__(
        self, base: Any, library: KernelLibrary, linear: LinearClass = PackedLinear, *, capped: bool = True
    ) -> None:
        """Copies the layers' weights into the layout of the class `linear`. `capped`: scores have the softcap that the
        config gives. Raises ModelRefused for a model that the kernels do not run."""
        super().__init__()
        self.config = base.config
        family = FAMILIES.get(base.config.model_type)
        if family is None:
            raise ModelRefused(f"{base.config.model_type} is no family that they run")
        if any(parameter.dtype not in library.formats for parameter in base.parameters()):
            raise ModelRefused(library.missing or f"they have no {str(next(base.parameters()).dtype)[6:]}")
        self.embeddings = Embeddings(base, family.embeddings)
        self.rotary: nn.Module | None = _part_of(base, family.rotary)
        self.norm: nn.Module | None = _part_of(base, family.norm)
        written = family.layers(base)
        types = base.config.layer_types if family.rotary_by_type else [ALL_TYPES] * len(written)
        by_module: dict[nn.Module, Layer] = {}  # a layer in several places stays one
        for layer, kind in zip(written, types, strict=True):
            if layer not in by_module:
                by_module[layer] = Layer(
                    layer, family, angles=kind if self.rotary else None, capped=capped, linear=linear
                )
        layers = [by_module[layer] for layer in written]
        self.layers = nn.ModuleList(layers)
        groups = groupby(layers, key=lambda layer: (layer.kind, layer.terms, layer.angles))
        self._calls = [_Call.of(list(group)) for _, group in groups]
        self.causal = any(layer.terms.causal for layer in layers)
        self.forms = "; ".join(dict.fromkeys(layer.form for layer in layers))

    @property
    def calls(self) -> list[int]:
        """How many layers run in each call, in their order."""
        return [call.count for call in self._calls]

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Computes the last hidden states [T, H] of a batch: of whole texts, of pieces, and of texts that begin like
        others."""
        states: Tensor = self.embeddings(batch)
        keys = dict.fromkeys(call.angles for call in self._calls)
        angles = {key: self._angles(states, batch, key) for key in keys}
        sequences, slots, first = torch.from_numpy(batch.layout), batch.slots, 0
        for call in self._calls:
            states = self._run(call, states, angles[call.angles], sequences, slots, first)
            first += call.count
        return states if self.norm is None else self.norm(states)

    def _angles(self, states: Tensor, batch: RaggedBatch, key: str | None) -> Angles | tuple[None, None]:
        if key is None or self.rotary is None:
            return None, None
        parts = self.rotary(states[None], batch.positions, *([key] if key else []))
        cos, sin = (part[0].float().contiguous() for part in parts)
        return cos, sin

    def _run(
        self,
        call: _Call,
        states: Tensor,
        angles: Angles | tuple[None, None],
        sequences: Tensor,
        slots: SlotTable,
        first: int,
    ) -> Tensor:
        """Runs the layers of a call, the first of which is the layer number `first`: states [T, H] -> [T, H].

        `sequences` [S, 5]: see `RaggedBatch.layout`.
        """
        terms, (head, _, keys) = call.terms, call.kind[0]
        no_keys = states.new_empty(keys, 0, head)
        layers = range(first, first + call.count)
        rows: Tensor = torch.ops.selvage.layers(
            states,
            call.numbers,
            *call.kind,
            *angles,
            sequences,
            terms.scale,
            terms.causal,
            terms.window or 0,
            terms.softcap or 0.0,
            torch.from_numpy(slots.segments),
            torch.from_numpy(slots.writes),
            [tensor for layer in layers for cache in slots.layer(layer, no_keys, no_keys) for tensor in cache],
        )
        return rows


class NativeEncoder(Encoder):
    """The encoder of a model that runs by the kernels."""

    def __init__(
        self,
        model: NativeModel,
        library: KernelLibrary,
        uncounted: int | None,
        token_types: TokenTypes | None,
        width: int,
    ) -> None:
        super().__init__(model, uncounted=uncounted, token_types=token_types, width=width)
        self.description = f"native ({library.instructions})"

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return bool(self.model.causal)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        hidden: Tensor = self.model(batch)
        return hidden
