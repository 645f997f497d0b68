"""Which of transformers' implementations of attention a model runs by default, and the model under another for a while.

What transformers takes by default is what sentence-transformers runs: PyTorch's fused attention where the class has it
and its config asks for nothing else, the written-out one else. For some classes and options these are two meanings, and
then the default is the model's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_worker.repository.weights import OWN_ATTENTION

FUSED, WRITTEN_OUT = OWN_ATTENTION


def default_of(model: Any) -> str:
    """The one that a model runs as it is loaded."""
    return str(model.config.get_text_config()._attn_implementation or WRITTEN_OUT)


def other_than(model: Any, implementation: str) -> str | None:
    """The one beside it, None where the class has no other."""
    if implementation == FUSED:
        return WRITTEN_OUT
    return FUSED if getattr(model, "_supports_sdpa", False) else None


def run_by(model: Any, implementation: str) -> None:
    """From now on. A class that looks the name up in its config, and not in transformers' table, finds it there."""
    if type(model)._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    else:
        model.config._attn_implementation = implementation


@contextmanager
def attending_by(model: Any, implementation: str) -> Iterator[None]:
    """For a while."""
    before = default_of(model)
    run_by(model, implementation)
    try:
        yield
    finally:
        run_by(model, before)
