"""Loads the library of kernels that was built for this PyTorch and fits this processor, or says why there is none."""

import hashlib
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gpu_worker.kernels.cpu.instructions import InstructionSet, supported

SOURCE = Path(__file__).parent / "source"
BUILT = Path(__file__).parent / "built"
COMMAND = "python -m gpu_worker.kernels.cpu.build"
_loading = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLibrary:
    """The kernels as this process can use them, as `torch.ops.selvage`.

    `instructions` names the set that they were built for. `formats` are number formats whose products this processor
    computes; none where no library could be loaded, for the reason `missing`. Every library multiplies int8.
    """

    instructions: str = ""
    formats: frozenset[torch.dtype] = frozenset()
    missing: str = ""


def load() -> KernelLibrary:
    """The library of this process: the best one that is built and fits. Loads it once."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> KernelLibrary:
    sets = supported()
    if not sets:
        return KernelLibrary(missing=f"none are made for this processor ({torch.backends.cpu.get_cpu_capability()})")
    built = [instructions for instructions in sets if path_of(instructions).exists()]
    if not built:
        others = any(BUILT.glob("*.so"))
        reason = "those that are built are for another processor, PyTorch or source" if others else "none are built"
        return KernelLibrary(missing=f"{reason}; {COMMAND} builds them")
    try:
        torch.ops.load_library(path_of(built[0]))
        names = torch.ops.selvage.formats()
    except (OSError, RuntimeError, AttributeError) as error:
        return KernelLibrary(missing=f"{path_of(built[0]).name} cannot be loaded: {str(error).splitlines()[0]}")
    return KernelLibrary(instructions=built[0].name, formats=frozenset(getattr(torch, name) for name in names))


def path_of(instructions: InstructionSet) -> Path:
    """Where the library for a set of instructions lies. Its name tells all that it was built from.

    PyTorch promises no stable interface for what the kernels call, so each library is for one version of it.
    """
    return BUILT / f"{instructions.name}-{_digest(instructions)}-torch{torch.__version__}.so"


@cache
def _digest(instructions: InstructionSet) -> str:
    """A short digest of the sources and the compiler's flags."""
    digest = hashlib.sha256(" ".join(instructions.flags).encode())
    for path in source_files():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def source_files() -> list[Path]:
    """All files of the source, in the order of their names."""
    return sorted(path for path in SOURCE.iterdir() if path.suffix in (".cpp", ".h"))
