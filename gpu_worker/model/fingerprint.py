"""The fingerprint of a loaded model: two models with the same one give the same rows."""

import json
from dataclasses import replace
from typing import Any

from gpu_worker.model.source import Source
from gpu_worker.model.tune import int8
from gpu_worker.repository import packages
from shared.card import LateInteraction


def fingerprint_of(source: Source, limit: int, late: LateInteraction | None, linear: str) -> str:
    """A digest of everything that the model's rows depend on.

    Linear layers count where they are rounded, since all other kernels give the same numbers up to rounding. Late
    interaction counts as resolved, so a setting that repeats what the files say changes nothing. Notices do not count.
    """
    digest = source.digest.copy()
    digest.update(source.tokenizer.content)
    facts: list[Any] = [
        repr(replace(source.recipe, late_interaction=None, notice="")),
        repr(late),
        limit,
        source.placement.dtype_name,
    ]
    facts += [packages.installed(), packages.code_of(source.model)]
    facts += [linear.replace(int8.NAME, int8.ROUNDING)] if linear.startswith(int8.NAME) else []
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()
