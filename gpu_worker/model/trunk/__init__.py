"""A transformers encoder without its head, token ids to hidden states, in the forms in which a device runs it."""

from gpu_worker.model.trunk.forms import FormChoice, Forms, Judge
from gpu_worker.model.trunk.packed import PackedTrunk
from gpu_worker.model.trunk.trunk import (
    ENDLESS,
    Trunk,
    positions_of,
    rotary_of_the_step,
    takes_token_types,
    uncounted_by,
)

__all__ = [
    "ENDLESS",
    "FormChoice",
    "Forms",
    "Judge",
    "PackedTrunk",
    "Trunk",
    "positions_of",
    "rotary_of_the_step",
    "takes_token_types",
    "uncounted_by",
]
