"""Attention with relative position terms: MPNet, DeBERTa-v2, and the encoders of T5, MT5 and UMT5.

These models know nothing of transformers' attention interface, or hand it a bias of tokens x tokens: they would take
the name "ragged" and mix sequences. So their encoder is replaced: tokens of all sequences are projected at once,
attention runs by `Terms.bias` inside each sequence, and nothing is as large as tokens x tokens. What a term adds
depends on tokens through their distance j - i only, so it is kept by distance: 2L - 1 numbers or vectors for length L,
those of a shorter text in the middle.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpu_worker.kernels.attention.relative import deberta, mpnet, t5
from gpu_worker.kernels.attention.relative.encoder import Current, RelativeEncoder, enter

ENCODERS: dict[str, Callable[[Any, Any, Current], torch.nn.Module]] = {
    "mpnet": mpnet.install,
    "deberta-v2": deberta.install,
    **dict.fromkeys(("t5", "mt5", "umt5"), t5.install),
}


def serves(config: Any) -> bool:
    """Whether this model type has its packed attention here."""
    return config.model_type in ENCODERS


def installed(model: Any) -> bool:
    """Whether `install` changed this model."""
    return isinstance(getattr(model, "encoder", None), RelativeEncoder | t5.T5Encoder)


def install(model: Any) -> None:
    """Makes a loaded model run packed, in place, from its keyword `ragged` on. Raises ModelRefused."""
    step = Current()
    with torch.no_grad():
        model.encoder = ENCODERS[model.config.model_type](model.encoder, model.config, step)
    model.register_forward_pre_hook(partial(enter, step), with_kwargs=True)
