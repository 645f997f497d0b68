"""Sets of a processor's instructions that the kernels are built for."""

from dataclasses import dataclass

import torch


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
INSTRUCTION_SETS = (
    InstructionSet("avx512_bf16", (*_AVX512, "-mavx512vnni", "-mavx512bf16")),
    InstructionSet("avx512", _AVX512),
    InstructionSet("avx2", ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2")),
)
"""All sets, the best first. Matrix units (AMX) need no set of their own: products ask for them while they run. Nor do
VNNI without AVX512_BF16 and AVX-VNNI: the one product by either asks for it."""


def supported() -> tuple[InstructionSet, ...]:
    """The sets that this processor has, the best first; empty where it has none of them, as on ARM.

    Asks PyTorch, so that its setting ATEN_CPU_CAPABILITY holds here too.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
        return INSTRUCTION_SETS if has_bf16 else INSTRUCTION_SETS[1:]
    return INSTRUCTION_SETS[2:] if capability == "AVX2" else ()
