"""Where and with what a result was measured."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "tokenizers", "grpcio")
MADE = ("benchmarks/results", "README.md", "docs/measured.md", "docs/plots")
"""What benchmarks write, and what is rendered from it."""


def describe() -> dict[str, Any]:
    """Processor, cores, versions and commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": _versions(),
        "commit": _commit(),
    }


def _versions() -> dict[str, str]:
    """Of those that are installed: a machine with an accelerator has PyTorch and little else."""
    installed = {each.metadata["Name"].lower() for each in importlib.metadata.distributions() if each.metadata["Name"]}
    return {name: importlib.metadata.version(name) for name in PACKAGES if name in installed}


def _processor() -> str:
    """Its name, family and model (clouds give several generations one name), and what of it counts for products."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    told = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" not in told:
        return platform.processor()
    flags = told.get("flags", "").split()
    features = [name for name in ("amx_bf16", "avx512_bf16", "avx512f") if name in flags]
    family = f"family {told.get('cpu family', '?')} model {told.get('model', '?')}"
    return f"{told['model name']} ({', '.join([family, *features])})"


def _commit() -> str:
    """The commit, and whether anything but results differs from it: a benchmark may follow another."""
    known = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--", ".", *(f":!{each}" for each in MADE))
    return f"{known}-dirty" if changed else known


def _git(*arguments: str) -> str:
    """Nothing where there is no git, or no repository: a machine with an accelerator may have a copy alone."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
