"""What a result was measured with: processor, cores, versions, commit. Standard library only."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "transformers", "sentence-transformers", "numpy", "scipy", "tokenizers", "grpcio")
PAGES = ("README.md", "docs/figures.md", "docs/accelerator.md", "docs/published.md", "docs/operating.md")
"""Pages with tables that are rendered from results."""
MADE = ("benchmarks/results", *PAGES)
"""Files that benchmarks write or render. Changes of these do not mark a commit as dirty."""


def describe() -> dict[str, Any]:
    """Describes the machine, for a result's JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "commit": commit(),
    }


def versions(names: Sequence[str], packages: Path | None = None) -> dict[str, str]:
    """Reads the versions of those packages that are installed here, or in the folder `packages`."""
    distributions = importlib.metadata.distributions(path=sys.path if packages is None else [str(packages)])
    installed = {
        (distribution.metadata["Name"] or "").lower().replace("_", "-"): distribution.version
        for distribution in distributions
    }
    return {name: installed[name] for name in names if name in installed}


def commit(checkout: Path = ROOT) -> str:
    """Names the commit, "-dirty" where anything but results differs from it; empty without git or repository."""
    name = _git(checkout, "describe", "--always", "--exclude=*")
    changed = _git(checkout, "status", "--porcelain", "--", ".", *(f":!{path}" for path in MADE))
    return f"{name}-dirty" if changed else name


def _processor() -> str:
    """Names the processor with its family and model, as generations share a name, and with its units for products."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", "").split()
    features = [name for name in ("amx_bf16", "avx512_bf16", "avx512f") if name in flags]
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    return f"{fields.get('model name', platform.machine())} ({', '.join([family, *features])})"


def _git(checkout: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
        ).stdout.strip()
    except FileNotFoundError:
        return ""
