"""The choice of the attention kernel for a device, made once at load."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gpu_worker.device.fastest import clearly_fastest
from gpu_worker.kernels.attention import hopper
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.hopper import Hopper
from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.kernels.attention.native import NativeAttention, serves
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.instructions import supported
from gpu_worker.ragged.batch import RaggedBatch

ROUNDS = 6
"""Runs of each attention in a trial on an accelerator."""
STEP, STEP_LENGTHS = 8192, (128, 512, 2048)
"""Tokens in a measured step on an accelerator, and tokens in each of its texts."""


def choose(device: torch.device, dtype: torch.dtype, head: int, *, softcap: bool, bias: bool) -> PackedAttention:
    """Returns the fastest attention that the device, the number format and the model allow."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The attention of a model's layers: numbers of a `head`, `heads` of queries, `shared` heads of keys and values."""

    head: int
    heads: int
    shared: int
    causal: bool


def hopper_refusal(device: torch.device, dtype: torch.dtype, shape: AttentionShape) -> str | None:
    """The reason not to try FlashAttention 3 on this device; "" where it is tried, None where nobody expects it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    return hopper.refusal(dtype, shape.head)


def hopper_is_faster(usual: PackedAttention, device: torch.device, dtype: torch.dtype, shape: AttentionShape) -> bool:
    """Whether FlashAttention 3 is clearly faster than the `usual` attention, over steps of short and long texts."""
    batches = [
        RaggedBatch.pack([np.zeros(length, dtype=np.int32)] * (STEP // length), device) for length in STEP_LENGTHS
    ]
    terms = AttentionTerms(scale=shape.head**-0.5, causal=shape.causal)
    query, key, value = (
        torch.randn(STEP, heads, shape.head, device=device).to(dtype).transpose(0, 1)
        for heads in (shape.heads, shape.shared, shape.shared)
    )

    def run(attention: PackedAttention) -> None:
        for batch in batches:
            attention(query, key, value, batch, terms)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    attentions = {attention.name: partial(run, attention) for attention in (usual, Hopper())}
    with torch.inference_mode():
        return clearly_fastest(attentions, usual.name, ROUNDS) == Hopper.name
