"""Merges an adapter into its model: W + scale x B A, so that the model runs as fast as without one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
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
def merged(model: nn.Module, parts: AdapterParts) -> Iterator[None]:
    """Has a model run with an adapter merged, as long as the context lasts."""
    biases = {f"{name}.bias" for name, pair in parts.pairs.items() if pair.bias is not None}
    names = {*(f"{name}.weight" for name in (*parts.pairs, *parts.tokens)), *biases, *parts.replaced}
    before = {name: model.get_parameter(name) for name in names}
    merge(model, parts)
    try:
        yield
    finally:
        for name, parameter in before.items():
            module, _, last = name.rpartition(".")
            setattr(model.get_submodule(module), last, parameter)


@contextmanager
def applied(model: nn.Module, parts: AdapterParts) -> Iterator[None]:
    """Has a model run with an adapter's pairs as they are written in the papers, as long as the context lasts: the
    outputs of each linear layer are changed, its weights stay. For comparisons, since it is slow."""
    hooks = [
        model.get_submodule(name).register_forward_hook(_hook(pair, parts.replaced.get(f"{name}.bias")))
        for name, pair in parts.pairs.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(pair: Pair, new_bias: Tensor | None) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
    def adapted(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x, bias = inputs[0], 0.0 if layer.bias is None else layer.bias
        added = F.linear(F.linear(x, pair.down.to(x)), pair.up.to(x), None if pair.bias is None else pair.bias.to(x))
        y: Tensor = output - bias + pair.scale * added
        if pair.magnitude is not None:
            weight = (layer.weight.T if isinstance(layer, Conv1D) else layer.weight).float()
            lengths = torch.linalg.norm(weight + pair.scale * (pair.up @ pair.down).to(weight), dim=1)
            y = y * (pair.magnitude.to(weight) / lengths).to(y)
        return y + (bias if new_bias is None else new_bias.to(y))

    return adapted


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
