"""The sets of a processor's instructions that kernels are built for. Loads the library that was built for this PyTorch
and fits this processor, or says why there is none."""

import hashlib
import platform
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "source"
BUILT = Path(__file__).parent / "built"
COMMAND = "python -m gpu_worker.kernels.cpu.build"
_loading = threading.Lock()


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Instructions that a library of kernels may use. `flags`: what makes the compiler use them."""

    name: str
    flags: tuple[str, ...]


_AVX512 = (
    "-mavx512f",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512bw",
    "-mfma",
    "-DCPU_CAPABILITY=AVX512",
    "-DCPU_CAPABILITY_AVX512",
)
_X86 = (
    InstructionSet("avx512_bf16", (*_AVX512, "-mavx512vnni", "-mavx512bf16")),
    InstructionSet("avx512", _AVX512),
    InstructionSet("avx2", ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2")),
)
_ARM = (InstructionSet("neon", ("-march=armv8-a", "-DCPU_CAPABILITY=DEFAULT")),)
INSTRUCTION_SETS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM}.get(platform.machine(), ())
"""All sets of this architecture, the best first. Matrix units (AMX) need no set of their own: products ask for them
while they run. Nor do VNNI without AVX512_BF16 and AVX-VNNI: the one product by either asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLibrary:
    """The kernels as this process can use them, as `torch.ops.selvage`.

    `instructions` names the set that they were built for. `formats` are dtypes whose products this processor
    computes; none where no library could be loaded, for the reason `missing`. Every library multiplies int8.
    """

    instructions: str = ""
    formats: frozenset[torch.dtype] = frozenset()
    missing: str = ""


def load() -> KernelLibrary:
    """Loads the library of this process once: the best one that is built and fits."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> KernelLibrary:
    sets = supported()
    if not sets:
        return KernelLibrary(missing=f"none are made for this processor ({torch.backends.cpu.get_cpu_capability()})")
    built = [instructions for instructions in sets if path_of(instructions).exists()]
    if not built:
        built_elsewhere = any(BUILT.glob("*.so"))
        reason = (
            "those that are built are for another processor, PyTorch or source" if built_elsewhere else "none are built"
        )
        return KernelLibrary(missing=f"{reason}; {COMMAND} builds them")
    try:
        torch.ops.load_library(path_of(built[0]))
        names = torch.ops.selvage.formats()
    except (OSError, RuntimeError, AttributeError) as error:
        return KernelLibrary(missing=f"{path_of(built[0]).name} cannot be loaded: {str(error).splitlines()[0]}")
    return KernelLibrary(instructions=built[0].name, formats=frozenset(getattr(torch, name) for name in names))


def supported() -> tuple[InstructionSet, ...]:
    """The sets that this processor has, the best first; empty where it has none of them.

    Asks PyTorch, so that its setting ATEN_CPU_CAPABILITY holds here too. Every ARM of 64 bits has NEON.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    names = {"neon"}
    if capability in ("AVX2", "AVX512"):
        names.add("avx2")
    if capability == "AVX512":
        names.add("avx512")
        if getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)():
            names.add("avx512_bf16")
    return tuple(instructions for instructions in INSTRUCTION_SETS if instructions.name in names)


def path_of(instructions: InstructionSet) -> Path:
    """Where the library for a set of instructions lies. Its name tells all that it was built from.

    PyTorch promises no stable interface for what the kernels call, so each library is for one version of it.
    """
    return BUILT / f"{instructions.name}-{_digest(instructions)}-torch{torch.__version__}.so"


@cache
def _digest(instructions: InstructionSet) -> str:
    """Computes a short digest of the sources and the compiler's flags."""
    digest = hashlib.sha256(" ".join(instructions.flags).encode())
    for path in source_files():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def source_files() -> list[Path]:
    """All files of the source, in the order of their names."""
    return sorted(path for path in SOURCE.iterdir() if path.suffix in (".cpp", ".h"))
