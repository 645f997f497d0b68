"""Kernels compiled for a GPU that need not be there, as the interpreter forgives what compilers do not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

import triton

from gpu_worker.kernels.maxsim.triton_maxsim import PROGRAMS_PER_PROCESSOR
from harness.environment import ROOT, python_path
from support.compiled import CUOBJDUMP, KERNELS, Compiled, compiled

pytestmark = pytest.mark.skipif(not CUOBJDUMP.exists(), reason="this Triton comes without CUDA's tools")

REGISTERS, SHARED, RESERVED = 65_536, 228 * 1024, 1024
"""Of a processor of Hopper: registers, bytes of shared memory, and of these what the system takes a program."""
PROGRAMS = {"maxsim": PROGRAMS_PER_PROCESSOR, "sum": 8, "finish": 4}
"""That are to fit a processor at once: what adds up and copies has to have many reads under way."""
OTHER = next(ROOT.glob(".venv-clients/triton/lib/python*/site-packages"), None)
"""Where the Triton lies that PyTorch 2.11 brings."""
USUAL = (
    *(
        "maxsim of 128 float32",
        "maxsim of 64 float16 masked",
        "maxsim of 128 bfloat16",
        "maxsim of 128 bfloat16 masked",
    ),
    *("maxsim of 1024 bfloat16 masked", "sum of bfloat16", "finish float32 by 16", "finish bfloat16 by 1"),
)
"""Each form of each kernel; `make test-slow` takes all of them."""
TIGHTEST = tuple(name for name in USUAL if re.match("maxsim of 128 bf|sum|finish bf", name))


def fits(name: str, found: Compiled) -> None:
    """Nothing is spilled, and as many programs as we count on fit a processor."""
    programs = PROGRAMS[name.split()[0]]
    assert (found.stack, found.local) == (0, 0)
    assert -(-found.registers // 8) * 8 * 32 * found.warps * programs <= REGISTERS  # they come by eight a thread
    assert (found.shared + RESERVED) * programs <= SHARED


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in KERNELS]
)
def test_every_variant_compiles_for_hopper(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spills. Tiles of MaxSim arrive 16 bytes a read, and half precision is multiplied by tensor cores.

    Rows are summed, read and written 16 bytes at once, and rounded to the nearest bfloat16.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not said
    found = compiled(name)
    fits(name, found)
    if name.startswith("maxsim"):
        assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", found.ptx)) == {"0x10"}
        assert ("wgmma" in found.ptx) == ("float32" not in name)
    elif not name.endswith("by 1"):
        assert "ld.global.v4.b32" in found.ptx
        assert "b16" not in re.findall(r"(?:ld|st)\.global\.(\w+)", found.ptx)
    if name.startswith("finish"):
        assert "cvt.rn.bf16" in found.ptx


@pytest.mark.skipif(OTHER is None, reason="`make clients` sets up another Triton; it needs an index")
@pytest.mark.parametrize("names", [TIGHTEST, pytest.param(tuple(KERNELS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_triton_of_an_older_pytorch_compiles_them_too(names: tuple[str, ...]) -> None:
    """It takes other numbers of registers for the same kernels."""
    program, path = str(ROOT / "tests" / "support" / "compiled.py"), f"{OTHER}{os.pathsep}{python_path()}"
    run = subprocess.run(
        [sys.executable, program, *names],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    told = json.loads(run.stdout)
    assert told["triton"] != triton.__version__
    assert set(told["kernels"]) == set(names)
    for name, usage in told["kernels"].items():
        fits(name, Compiled(**usage))
