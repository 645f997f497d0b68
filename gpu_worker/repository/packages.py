"""Installed packages that a model's rows depend on: transformers, which computes them, and those that it calls in place
of its own code wherever they can be imported.

torch is not among them: its versions differ only in the last bits. Nor is peft, which is not used. A repository's own
code may import anything; only the code itself counts, wherever its auto_map points.
"""

import inspect
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

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


def installed() -> list[str]:
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
