"""The kernel of MaxSim compiled for a GPU that need not be there, as the interpreter forgives what compilers do not."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

HOPPER = ("cuda", 90, 32)
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


FORMS = [(torch.float32, 128), *product([torch.bfloat16, torch.float16], [64, 128, 1024])]
VARIANTS = [
    pytest.param(*form, masked, marks=pytest.mark.slow if (place + masked) % 2 else ())
    for place, form in enumerate(FORMS)
    for masked in (False, True)
]


@pytest.mark.parametrize(("dtype", "width", "masked"), VARIANTS)
def test_every_variant_compiles_for_hopper(
    dtype: torch.dtype, width: int, masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form once, by `make test-slow` masked and not: all 14.

    Tiles arrive 16 bytes a read, and half precision is multiplied by tensor cores.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpu_worker.maxsim.kernel import constants_of, form_of
    from gpu_worker.maxsim.tiles import score_pairs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not said
    form, constants = form_of(dtype, width), constants_of(dtype, width, masked)
    pointers = [POINTERS[dtype], POINTERS[dtype], "*u8" if masked else "*i32", "*i32", "*i32", "*fp32"]
    signature = dict(zip(score_pairs.arg_names, [*pointers, "i32", "i32"], strict=False))
    source = ASTSource(
        score_pairs,
        signature | dict.fromkeys(constants, "constexpr"),
        constants,
        {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))},
    )
    options = {"num_warps": form.warps, "num_stages": form.stages}
    ptx = triton.compile(source, target=GPUTarget(*HOPPER), options=options).asm["ptx"]
    assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)) == {"0x10"}
    assert ("wgmma" in ptx) == (dtype is not torch.float32)
