"""Longformer classifies with global attention from and to the first token (arXiv:2004.05150, section 3.1).

Its bare model leaves that to the caller, so the encoder of a classifier is told here what its class tells it.
"""

from typing import Any

import torch
from torch import nn


def install(model: nn.Module, base: nn.Module) -> None:
    """`model` is the whole class as loaded, `base` its encoder."""
    if type(model).__name__ == "LongformerForSequenceClassification":
        base.register_forward_pre_hook(_attend_from_the_first, with_kwargs=True)


def _attend_from_the_first(_: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if keywords.get("global_attention_mask") is not None:  # its own class calls
        return arguments, keywords
    mask = torch.zeros_like(keywords["input_ids"])
    mask[:, 0] = 1
    return arguments, keywords | {"global_attention_mask": mask}
