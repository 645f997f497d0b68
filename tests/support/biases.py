"""Biases of attention scores, as `AttentionTerms.bias` takes them."""

import torch
from torch import Tensor


def nearer(query: Tensor, key: Tensor) -> Tensor:
    """A bias by distance, [L, L]."""
    places = torch.arange(query.shape[-2])
    return torch.cos((places[:, None] - places) / 3)


def louder(query: Tensor, key: Tensor) -> Tensor:
    """A bias by distance and content, [..., H, L, L]."""
    return query.mean(-1, keepdim=True) * nearer(query, key)
