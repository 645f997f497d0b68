"""The fingerprint of a loaded model: two models with the same one give the same rows.

It covers the installed packages that rows depend on: transformers, which computes them, and those that it calls in
place of its own code wherever they can be imported. torch is not among them: its versions differ only in the last bits.
Nor is peft, which is not used. A repository's own code may import anything; only the code itself counts, wherever its
auto_map points.
"""

import inspect
import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from gpu_worker.model.source import Source
from gpu_worker.model.tune import int8
from shared.card import LateInteraction

COMPUTES = "transformers"
FETCHED = "transformers_modules."
"""Package in which transformers puts code that a repository contains or names."""
STAND_INS = {
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "kernels": "kernels",
    "mamba_ssm": "mamba-ssm",
    "mambapy": "mambapy",
    "xlstm": "xlstm",
}
"""Distributions by the name they are imported under, as `transformers.utils.import_utils` looks for them."""


def fingerprint_of(source: Source, limit: int, late: LateInteraction | None, linear: str) -> str:
    """A digest of everything that the model's rows depend on.

    Linear layers count where they are rounded, since all other kernels give the same numbers up to rounding. Late
    interaction counts as resolved, so a setting that repeats what the files say changes nothing. Notices do not count.
    """
    digest = source.digest.copy()
    digest.update(source.tokenizer.content)
    if source.queries:
        digest.update(source.queries.tokenizer.content)
    facts: list[Any] = [
        repr(replace(source.recipe, late_interaction=None, notice="")),
        repr(late),
        limit,
        source.placement.dtype_name,
    ]
    facts += [installed_packages(), code_of(source.model)]
    facts += [linear.replace(int8.NAME, int8.ROUNDING)] if linear.startswith(int8.NAME) else []
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def installed_packages() -> list[str]:
    """Lists those of these packages that can be imported, as names with versions."""
    distributions = {COMPUTES: COMPUTES} | STAND_INS
    return [f"{name} {_version(distribution)}" for name, distribution in distributions.items() if find_spec(name)]


def code_of(model: Any) -> list[str]:
    """Reads the sources of a model's classes that transformers fetched, from any repository."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    files = {inspect.getmodule(kind) for kind in classes if kind.__module__.startswith(FETCHED)}
    return sorted(inspect.getsource(file) for file in files if file is not None)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # a folder on the path
        return "of no version"
