"""Loads that spare what tests of other things do not need: references of the gate taken again."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from gpu_worker.model import tuning
from gpu_worker.model.verify.gate import Reference, take_reference
from gpu_worker.model.verify.own_run import NO_TYPES, Feeding, default_of
from gpu_worker.model.verify.probes import Probes


class Remembered:
    """Takes the place of `take_reference` where models are loaded. Tests of the gate itself make their own.

    What a model's own attention says of the probes depends on its classes and their code, its config, its weights and
    the probes, so another load of the same would only find it again.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Reference] = {}

    def __call__(self, model: Any, probes: Probes, feeding: Feeding = NO_TYPES) -> Reference:
        key = _digest(model, probes, feeding)
        if key not in self._known:
            self._known[key] = take_reference(model, probes, feeding)
        return self._known[key]


def _digest(model: Any, probes: Probes, feeding: Feeding) -> bytes:
    digest = hashlib.blake2b()
    told = {name: each for name, each in model.config.to_dict().items() if name != "_name_or_path"}
    facts = [type(model), model._modules.keys(), told, probes.tails, probes.padded, probes.again, probes.written]
    facts += [feeding.types, feeding.masks, default_of(model), *_forwards(model)]
    digest.update(repr([*facts, [each.tolist() for each in probes.texts]]).encode())
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {each.dtype} {tuple(each.shape)}".encode())
        digest.update(each.detach().contiguous().flatten().view(torch.uint8).numpy())
    return digest.digest()


def _forwards(model: Any) -> list[str]:
    """Where the code of each module is: a test may have put its own in the place of a class's."""
    codes = {getattr(type(module).forward, "__code__", None) for module in model.modules()}
    return sorted(f"{code.co_filename}:{code.co_firstlineno}" for code in codes if code is not None)


SetAttribute = Callable[[Any, str, Any], None]
"""Of what, which, to what: `setattr`, or a patch's."""


def remember(set_attribute: SetAttribute) -> None:
    """From now on, or for as long as what is set holds."""
    set_attribute(tuning, "take_reference", Remembered())
