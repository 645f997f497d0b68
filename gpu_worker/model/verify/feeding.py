"""What a model is fed for one text, and its run of it: as sentence-transformers feeds and calls it, without a batch."""

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
    """`types`: as the tokenizer gives them, those that are all 0 too; None where the model reads none. `written`: texts
    and, for a model of pairs, pairs as its tokenizer class gives them. `masks`: whether it gives masks of texts alone.
    """

    types: TokenTypes | None = None
    written: tuple[WrittenInputs, ...] = ()
    masks: bool = True

    def alone(self, model: Any, text: Ids, tail: int = 0, second: int = 0) -> Tensor:
        """Hidden states [L, H] of one text, whose last `tail` tokens are attended to by nobody.

        Raises ModelRefused where the model's own code fails, whatever it is that it misses.
        """
        return run(model, self.inputs([text], [tail], [second]))[0]

    def padded(self, model: Any, texts: Sequence[Ids]) -> Tensor:
        """[B, L, H] of texts padded to the longest."""
        nothing = [0] * len(texts)
        return run(model, self.inputs(texts, nothing, nothing))

    def inputs(self, texts: Sequence[Ids], tails: Sequence[int], seconds: Sequence[int]) -> dict[str, Counts]:
        """[B, L] by name: ids padded by 0, where they are attended to, and token types where they are fed.

        A single text that is attended to throughout has no mask where the tokenizer gives none.
        """
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        mask, types, fed = np.zeros_like(ids), np.zeros_like(ids), False
        for row, (text, tail, second) in enumerate(zip(texts, tails, seconds, strict=True)):
            ids[row, : len(text)], mask[row, : len(text) - tail] = text, 1
            given = None if self.types is None else self.types.of(text, np.array([0, len(text)]), np.array([second]))
            if given is not None:
                types[row, : len(text)], fed = given, True
        told = {MASK: mask} if self.masks or not mask.all() else {}
        return {IDS: ids} | told | ({TYPES: types} if fed else {})


NO_TYPES = Feeding()


def feeding_of(model: Any, inputs: TokenizerInputs, *, pairs: bool = False, expands: bool = False) -> Feeding:
    """What a bare model is fed. `pairs`: whether it is for pairs; `expands`: whether queries get tokens of their own.

    Raises ModelRefused where its tokenizer gives it what cannot be fed here.
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
    """Last hidden states [B, L, H] of inputs [B, L], of which the model gets those that it can take.

    Raises ModelRefused where the model's own code fails, whatever it is that it misses.
    """
    device = next(model.parameters()).device
    given = {name: torch.from_numpy(each).to(device) for name, each in inputs.items()}
    try:
        return hidden_of(model, accepted(model, given))
    except ModelRefused:
        raise
    except Exception as error:
        length = inputs[IDS].shape[1]
        raise ModelRefused(
            f"{type(model).__name__} cannot run {length} token ids by itself: {first_line(error)}"
        ) from error


def accepted(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a forward takes of them and of `return_dict`: what it names, or all where it takes any keyword."""
    parameters = inspect.signature(model.forward).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {name: each for name, each in {**inputs, "return_dict": True}.items() if anything or name in parameters}
