"""Merges an adapter into its model: W + scale x B A, so that the model runs as fast as without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from gpu_worker.model.adapters.parts import AdapterParts, Pair


def merge(model: Any, parts: AdapterParts) -> None:
    """Merges an adapter into a model, in place. Sums are made in float32 and rounded to the model's format at the end.

    Weights that changed are new ones: others that shared the old ones keep those.
    """
    for name, tensor in changed(model, parts):
        module_name, _, last = name.rpartition(".")
        module = model.get_submodule(module_name)
        setattr(module, last, nn.Parameter(tensor.to(getattr(module, last)), requires_grad=False))


@contextmanager
def merged(model: Any, parts: AdapterParts) -> Iterator[None]:
    """Has a model run with an adapter merged, as long as the context lasts."""
    before = {name: model.get_parameter(name) for name in _names(parts)}
    merge(model, parts)
    try:
        yield
    finally:
        for name, parameter in before.items():
            module_name, _, last = name.rpartition(".")
            setattr(model.get_submodule(module_name), last, parameter)


def _names(parts: AdapterParts) -> set[str]:
    biases = {f"{name}.bias" for name, pair in parts.pairs.items() if pair.bias is not None}
    return {*(f"{name}.weight" for name in (*parts.pairs, *parts.tokens)), *biases, *parts.replaced}


def changed(model: Any, parts: AdapterParts) -> Iterator[tuple[str, Tensor]]:
    """The parameters that an adapter changes, by name, in float32."""
    yield from ((name, tensor.float()) for name, tensor in parts.replaced.items() if not _of_pair(name, parts))
    for name, pair in parts.pairs.items():
        module = model.get_submodule(name)
        weight = parts.replaced.get(f"{name}.weight", module.weight).float()
        yield f"{name}.weight", merged_weight(module, weight, pair)
        bias = parts.replaced.get(f"{name}.bias")
        if pair.bias is not None:
            bias = (module.bias if bias is None else bias).float() + pair.scale * pair.bias.to(weight.device)
        if bias is not None:
            yield f"{name}.bias", bias.float()
    for name, (ids, rows) in parts.tokens.items():
        weight = model.get_submodule(name).weight.float().clone()
        weight[list(ids)] = rows.to(weight.device)
        yield f"{name}.weight", weight


def _of_pair(name: str, parts: AdapterParts) -> bool:
    return name.rpartition(".")[0] in parts.pairs


def merged_weight(module: nn.Module, weight: Tensor, pair: Pair) -> Tensor:
    """A layer's or an embedding's weight with its pair added, in the layout that the module has."""
    down, up = pair.down.to(weight.device), pair.up.to(weight.device)
    turned = isinstance(module, Conv1D | nn.Embedding)  # their weights are [in, out]
    rows = (weight.T if turned else weight) + pair.scale * (up @ down)
    if pair.magnitude is not None:
        rows = rows * (pair.magnitude.to(weight.device) / torch.linalg.norm(rows, dim=1))[:, None]
    return (rows.T if turned else rows).contiguous()
