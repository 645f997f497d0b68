"""Global attention for Longformer classifiers: from and to the first token (arXiv:2004.05150, section 3.1).

The class of the classifier asks its encoder for it. An encoder that runs without this class gets it here.
"""

from typing import Any

import torch
from torch import nn


def install(model: nn.Module, base: nn.Module) -> None:
    """Makes `base`, the encoder of `model`, attend globally if `model` is a Longformer classifier."""
    if type(model).__name__ == "LongformerForSequenceClassification":
        base.register_forward_pre_hook(_add_global_attention, with_kwargs=True)


def _add_global_attention(_: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Adds the mask of global attention to the inputs of a forward, as a hook before it."""
    if keywords.get("global_attention_mask") is not None:  # the classifier's own class has set it
        return arguments, keywords
    mask = torch.zeros_like(keywords["input_ids"])
    mask[:, 0] = 1
    return arguments, keywords | {"global_attention_mask": mask}
