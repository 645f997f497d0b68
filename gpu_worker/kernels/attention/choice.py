"""The choice of the attention kernel for a device, made once at load."""

import torch

from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import PackedAttention
from gpu_worker.kernels.attention.native_attention import NativeAttention, serves
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import supported


def choose(device: torch.device, dtype: torch.dtype, head: int, *, softcap: bool, bias: bool) -> PackedAttention:
    """Returns the fastest attention that the device, the dtype and the model allow."""
    if device.type == "cpu":
        kernels = library.load()
        return NativeAttention(kernels) if serves(kernels, dtype, head) else EqualRuns()
    flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and not (softcap or bias)
    if flash and head % 8 == 0 and head <= 256 and torch.cuda.get_device_capability(device) >= (8, 0):
        return Varlen()
    return EqualRuns()


def missing_kernels(device: torch.device) -> str:
    """What a user should know where this processor could run faster kernels than it does; "" where it does not."""
    missing = library.load().missing if device.type == "cpu" and supported() else ""
    return f"steps take up to twice as long as with the processor's kernels: {missing}" if missing else ""
