"""Every kernel of ours compiled for a GPU that need not be there, and what it takes of a processor of that GPU.

As a program it tells that of the kernels named, as JSON: so another Triton can be asked, in a process of its own.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_worker.kernels.maxsim import triton_maxsim as maxsim
from gpu_worker.kernels.maxsim.maxsim_tiles import score_pairs
from gpu_worker.kernels.rows import triton_rows as rows
from gpu_worker.kernels.rows.row_tiles import finish_rows, sum_segments

HOPPER = ("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A function of Triton with the types of its tensors and numbers, and what it is compiled with."""

    function: Any
    types: list[str]
    constants: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`registers` of a thread, bytes of `stack` and `local` memory of a thread, bytes of `shared` memory of a program.

    What does not fit into registers is spilled to the stack.
    """

    ptx: str
    warps: int
    registers: int
    stack: int
    local: int
    shared: int


def _maxsim(dtype: torch.dtype, width: int, masked: bool) -> Kernel:
    form = maxsim.variant_of(dtype, width)
    tensors = [POINTERS[dtype]] * 2 + ["*u8" if masked else "*i32", "*i32", "*i32", "*fp32"]
    options = {"num_warps": form.warps, "num_stages": form.stages, "maxnreg": form.registers}
    constants = maxsim.constants_of(dtype, width, masked)
    return Kernel(function=score_pairs, types=[*tensors, "i32", "i32"], constants=constants, options=options)


def _sum(dtype: torch.dtype) -> Kernel:
    types = [POINTERS[dtype], "*i32", "*fp32", "i32", "i32"]
    options = {"num_warps": rows.WARPS}
    return Kernel(function=sum_segments, types=types, constants=rows.sum_constants(dtype), options=options)


def _finish(dtype: torch.dtype, dimensions: int) -> Kernel:
    types = [POINTERS[dtype], "*i64", "*u8", "*fp32", "*u8", *["i32"] * 6]
    constants = rows.finish_constants(dtype, dimensions)
    return Kernel(function=finish_rows, types=types, constants=constants, options={"num_warps": rows.WARPS})


def _named() -> dict[str, Callable[[], Kernel]]:
    named: dict[str, Callable[[], Kernel]] = {}
    for dtype, width in [(torch.float32, 128), *((dtype, width) for dtype in HALF for width in (64, 128, 1024))]:
        for masked in (False, True):
            name = f"maxsim of {width} {str(dtype)[6:]}{' masked' * masked}"
            named[name] = lambda dtype=dtype, width=width, masked=masked: _maxsim(dtype, width, masked)
    for dtype in POINTERS:
        named[f"sum of {str(dtype)[6:]}"] = lambda dtype=dtype: _sum(dtype)
        for dimensions in (16, 1):
            name = f"finish {str(dtype)[6:]} by {dimensions}"
            named[name] = lambda dtype=dtype, dimensions=dimensions: _finish(dtype, dimensions)
    return named


KERNELS = _named()
"""Every variant that our code can reach."""


def compiled(name: str) -> Compiled:
    """One of KERNELS, by its name."""
    kernel = KERNELS[name]()
    tensors = [place for place, kind in enumerate(kernel.types) if kind.startswith("*")]
    source = ASTSource(
        kernel.function,
        dict(zip(kernel.function.arg_names, kernel.types, strict=False)) | dict.fromkeys(kernel.constants, "constexpr"),
        kernel.constants,
        {(place,): [["tt.divisibility", 16]] for place in tensors},
    )
    made = triton.compile(source, target=GPUTarget(*HOPPER), options=kernel.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(made.asm["cubin"])
        binary.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", binary.name], check=True, capture_output=True, text=True)
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage.stdout)
    registers, stack, local = map(int, found)
    return Compiled(
        ptx=made.asm["ptx"],
        warps=made.metadata.num_warps,
        registers=registers,
        stack=stack,
        local=local,
        shared=made.metadata.shared,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        usages = {name: asdict(compiled(name)) for name in sys.argv[1:]}
    print(json.dumps({"triton": triton.__version__, "kernels": usages}))
