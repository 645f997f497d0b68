"""Where and with what a result was measured: processor, cores, versions, commit. Standard library only."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "transformers", "numpy", "tokenizers", "grpcio")
MADE = ("benchmarks/results", "README.md", "docs/measured.md", "docs/accelerator.md", "docs/plots")
"""What benchmarks write, and what is rendered from it: no change of these makes a result another's."""


def describe(checkout: Path = ROOT) -> dict[str, Any]:
    """For JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "commit": commit(checkout),
    }


def versions(names: Sequence[str], packages: Path | None = None) -> dict[str, str]:
    """Of those that are installed, here or in that folder of packages."""
    there = importlib.metadata.distributions(path=sys.path if packages is None else [str(packages)])
    installed = {(package.metadata["Name"] or "").lower().replace("_", "-"): package.version for package in there}
    return {name: installed[name] for name in names if name in installed}


def commit(checkout: Path = ROOT) -> str:
    """The commit, and whether anything but results differs from it; empty where there is no git or no repository."""
    revision = _git(checkout, "describe", "--always", "--exclude=*")
    changed = _git(checkout, "status", "--porcelain", "--", ".", *(f":!{path}" for path in MADE))
    return f"{revision}-dirty" if changed else revision


def _processor() -> str:
    """Its name, family and model (clouds give several generations one name), and what of it counts for products."""
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
