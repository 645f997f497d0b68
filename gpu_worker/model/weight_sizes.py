"""How many weights a model multiplies with, and how many bytes all of them take."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from gpu_worker.model.tune.linear import PrepackedLinear


def multiplied_weights(base: Any) -> int:
    """About how many weights every token is multiplied with: all but the embeddings, of which it reads one row."""
    embeddings = base.get_input_embeddings()
    looked_up = sum(weight.numel() for weight in embeddings.parameters()) if isinstance(embeddings, nn.Module) else 0
    whole: int = sum(weight.numel() for weight in base.parameters())
    return whole - looked_up


def weight_bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes of all weights as they are laid out for computing; weights that modules share count once."""
    tensors = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    packed = {
        id(layer): layer.packed
        for module in modules
        for layer in module.modules()
        if isinstance(layer, PrepackedLinear)
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors.values(), *packed.values()))
