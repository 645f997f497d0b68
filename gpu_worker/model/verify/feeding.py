"""The inputs that a model gets, and its own run on them: as sentence-transformers feeds and calls it."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import takes_token_types
from gpu_worker.model.encoder.equal_length import hidden_of
from gpu_worker.ragged.token_types import Counts, Ids, TokenTypes
from gpu_worker.repository.files import first_line
from gpu_worker.repository.inputs import IDS, MASK, TYPES, TokenizerInputs, WrittenInputs
from shared.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """Turns token ids into the inputs that a model's own tokenizer class would make.

    `types` are the tokenizer's token types, also those that are all 0; None where the model reads none. `written` are
    texts, and pairs for a model of pairs, with the inputs that the tokenizer class made. `masks` says whether the
    tokenizer makes a mask for a single text.
    """

    types: TokenTypes | None = None
    written: tuple[WrittenInputs, ...] = ()
    masks: bool = True

    def alone(self, model: Any, text: Ids, tail: int = 0, second_segment: int = 0) -> Tensor:
        """Hidden states [L, H] of one text; no token attends to its last `tail` tokens.

        Raises ModelRefused where the model's own code fails for any reason.
        """
        return run(model, self.inputs([text], [tail], [second_segment]))[0]

    def padded(self, model: Any, texts: Sequence[Ids]) -> Tensor:
        """Hidden states [B, L, H] of texts that are padded to the longest."""
        zeros = [0] * len(texts)
        return run(model, self.inputs(texts, zeros, zeros))

    def inputs(self, texts: Sequence[Ids], tails: Sequence[int], second_segments: Sequence[int]) -> dict[str, Counts]:
        """Inputs [B, L] by name: ids padded by 0, a mask, and token types where the model is fed any.

        Texts without padding and tails get a mask only where the tokenizer makes one.
        """
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        mask, types, has_types = np.zeros_like(ids), np.zeros_like(ids), False
        for row, (text, tail, second) in enumerate(zip(texts, tails, second_segments, strict=True)):
            ids[row, : len(text)], mask[row, : len(text) - tail] = text, 1
            ends, seconds = np.array([0, len(text)]), np.array([second])
            text_types = None if self.types is None else self.types.of(text, ends, seconds)
            if text_types is not None:
                types[row, : len(text)], has_types = text_types, True
        masks = {MASK: mask} if self.masks or not mask.all() else {}
        return {IDS: ids} | masks | ({TYPES: types} if has_types else {})


NO_TYPES = Feeding()
"""Feeding of a model that reads no token types."""


def feeding_of(model: Any, inputs: TokenizerInputs, *, pairs: bool = False, expands: bool = False) -> Feeding:
    """Finds what a bare model is fed. `pairs`: whether it reads pairs; `expands`: whether queries are expanded.

    Raises ModelRefused where its tokenizer makes inputs that cannot be fed here.
    """
    parameters = inspect.signature(model.forward).parameters
    for name in dict.fromkeys(name for written in inputs.texts for name in written.inputs):
        if name in parameters and name not in (IDS, MASK, TYPES):
            raise ModelRefused(f"its tokenizer gives {name} beside token ids, and {type(model).__name__} reads them")
    masks = all(MASK in written.inputs for written in inputs.texts)
    if inputs.types is None or not takes_token_types(model):
        return Feeding(written=inputs.texts, masks=masks)
    if pairs and not inputs.types_hold_for_pairs:
        raise ModelRefused("its tokenizer gives token types of pairs that do not tell where the second text begins")
    if expands and inputs.types.text.types != {0}:
        raise ModelRefused("its tokenizer gives token types that are not 0, and its queries are expanded")
    written = inputs.texts + (inputs.pairs if pairs else ())
    return Feeding(types=replace(inputs.types, zeros=True), written=written, masks=masks)


def run(model: Any, inputs: Mapping[str, Counts]) -> Tensor:
    """Last hidden states [B, L, H] of inputs [B, L] by name; the model gets those that its forward accepts.

    Raises ModelRefused where the model's own code fails for any reason.
    """
    device = next(model.parameters()).device
    tensors = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}
    try:
        return hidden_of(model, accepted(model, tensors))
    except ModelRefused:
        raise
    except Exception as error:
        length = inputs[IDS].shape[1]
        raise ModelRefused(
            f"{type(model).__name__} cannot run {length} token ids by itself: {first_line(error)}"
        ) from error


def accepted(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs, and `return_dict`, that a model's forward accepts: those it names, or all if it has `**keywords`."""
    parameters = inspect.signature(model.forward).parameters
    accepts_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    offered = {**inputs, "return_dict": True}
    return {name: value for name, value in offered.items() if accepts_all or name in parameters}
