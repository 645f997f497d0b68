"""What a token costs a model: its products with weights, and those of attention, which grow with the text."""

from collections.abc import Iterable
from typing import Any

from gpu_worker.model.loading import Model
from shared.jobs import Job

CAUSAL = ("qwen2", "qwen3", "mistral", "llama")
"""Families that look back only, unless their config says otherwise."""


def per_token(model: Model, jobs: Iterable[Job]) -> float:
    """The mean over all tokens of the jobs, in operations (a multiplication and an addition are two)."""
    config: Any = model.trunk.model.config
    config = config.get_text_config()
    heads = int(config.num_attention_heads)
    width = heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    causal = bool(getattr(config, "is_causal", model.family in CAUSAL))
    squares = tokens = 0
    for job in jobs:
        squares += sum(length**2 for length in job.tokens.lengths)
        tokens += job.tokens.total
    attention = 4.0 * squares * width * int(config.num_hidden_layers) / (2 if causal else 1)
    return model.flops_per_token + attention / tokens
