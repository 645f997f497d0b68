"""The implementations of attention in transformers: which one a model runs by default, and how to run another.

The default is what sentence-transformers runs: PyTorch's fused attention (sdpa) where the class supports it and its
config asks for nothing else, otherwise the written-out one (eager). For some classes and options the two compute
different things; then the default is right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_worker.repository.weights import OWN_ATTENTION

FUSED, WRITTEN_OUT = OWN_ATTENTION
"""Transformers' names of the two implementations: sdpa and eager."""


def default_of(model: Any) -> str:
    """Name of the attention that a model runs at present, which after loading is its default."""
    return str(model.config.get_text_config()._attn_implementation or WRITTEN_OUT)


def other_than(model: Any, implementation: str) -> str | None:
    """Name of the other implementation that a model's class supports; None where it supports only this one."""
    if implementation == FUSED:
        return WRITTEN_OUT
    return FUSED if getattr(model, "_supports_sdpa", False) else None


def run_by(model: Any, implementation: str) -> None:
    """Makes a model run this implementation from now on.

    Classes that do not take the name from transformers' table read it from their config.
    """
    if type(model)._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    else:
        model.config._attn_implementation = implementation


@contextmanager
def attending_by(model: Any, implementation: str) -> Iterator[None]:
    """Makes a model run this implementation inside the `with` block."""
    before = default_of(model)
    run_by(model, implementation)
    try:
        yield
    finally:
        run_by(model, before)
