"""Attention with relative position terms: MPNet, DeBERTa-v2, and the encoders of T5, MT5 and UMT5.

These models do not use transformers' attention interface, or pass it a bias of tokens x tokens: they would accept the
name "ragged" and mix sequences. So their encoder is replaced: tokens of all sequences are projected at once, attention
runs inside each sequence with an `AttentionTerms.bias`, and nothing is as large as tokens x tokens. The terms depend on
tokens only through their distance j - i, so they are stored by distance: 2L - 1 numbers or vectors for length L, with
those for a shorter text in the middle.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpu_worker.kernels.attention.relative import deberta, t5
from gpu_worker.kernels.attention.relative.relative_encoder import (
    ForwardState,
    RelativeEncoder,
    begin_pass,
    install_mpnet,
)

ENCODERS: dict[str, Callable[[Any, Any, ForwardState], torch.nn.Module]] = {
    "mpnet": install_mpnet,
    "deberta-v2": deberta.install,
    **dict.fromkeys(("t5", "mt5", "umt5"), t5.install),
}


def serves(config: Any) -> bool:
    """Whether this package has the packed attention of a config's model type."""
    return config.model_type in ENCODERS


def installed(model: Any) -> bool:
    """Whether `install` changed this model."""
    return isinstance(getattr(model, "encoder", None), RelativeEncoder | t5.T5Encoder)


def install(model: Any) -> None:
    """Changes a loaded model in place, so that it runs packed batches (keyword `ragged`). Raises ModelRefused."""
    state = ForwardState()
    with torch.no_grad():
        model.encoder = ENCODERS[model.config.model_type](model.encoder, model.config, state)
    model.register_forward_pre_hook(partial(begin_pass, state), with_kwargs=True)
