"""Llama 4's attention temperature in packed runs: positions are counted by text, not by step.

Layers without rotary positions scale their queries by 1 + scale x log(1 + floor((position + 1) / floor)), so that long
texts do not blur (arXiv:2501.19399). The query is projected and then only scaled, so `attend` can scale it.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import TEMPERED


def install(model: nn.Module) -> None:
    """Makes `attend` scale queries in packed runs; in all other runs the model does so itself. Twice does no harm."""
    for module in model.modules():
        if hasattr(module, TEMPERED):
            continue
        if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
            setattr(module, TEMPERED, partial(_temperature, float(module.attn_scale), float(module.floor_scale)))  # type: ignore[arg-type]
            module.register_forward_pre_hook(_switch_tempering, with_kwargs=True)


def _switch_tempering(module: Any, _: Any, keywords: dict[str, Any]) -> None:
    module.attn_temperature_tuning = "ragged" not in keywords


def _temperature(scale: float, floor: float, positions: Tensor) -> Tensor:
    return torch.log1p(torch.floor((positions.float() + 1) / floor)) * scale + 1
