"""The choice of the attention kernel for a device, made once at load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from gpu_worker.device.fastest import CLEAR, clearly_fastest, shortest_seconds
from gpu_worker.kernels.attention import hopper
from gpu_worker.kernels.attention.equal_runs import EqualRuns, KernelByLength, RunKernel
from gpu_worker.kernels.attention.hopper import Hopper
from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.kernels.attention.native import NativeAttention, serves
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.kernels.attention.written_out import onednn_products
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.instructions import supported
from gpu_worker.ragged.batch import RaggedBatch

BOUNDS = (16, 32, 64, 128, 256)
LENGTHS = (11, 23, 47, 95, 191, 383)
"""Lengths that are measured: one for sequences of up to each bound, and one beyond. They are odd, as most lengths of
texts are: PyTorch's softmax is at its best where rows are a multiple of its vectors."""
TOKENS, SEQUENCES, HEADS, RUNS = 512, 4, 12, 8
"""Sizes of a measurement: about 512 tokens in at least 4 sequences of 12 heads, and a single sequence, as texts of many
lengths arrive; every kernel runs 8 times."""
AHEAD = 0.9
"""Largest share of the usual kernel's time that another kernel may take over all lengths to replace it. Noise evens out
over the lengths, so a smaller lead is enough than for one length."""
ROUNDS = 6
"""Runs of each attention in a trial on an accelerator."""
STEP, STEP_LENGTHS = 8192, (128, 512, 2048)
"""Tokens in a measured step on an accelerator, and tokens in each of its texts."""
EXACT = 1e-5
"""Largest error, as a share of the largest product. Factors rounded to bfloat16 are off by a hundred times as much."""


def choose(
    device: torch.device, dtype: torch.dtype, head: int, *, causal: bool, softcap: bool, bias: bool
) -> PackedAttention:
    """Returns the fastest attention that the device, the number format and the model allow."""
    if device.type == "cpu":
        kernels = library.load()
        native = serves(kernels, dtype, head)
        return NativeAttention(kernels) if native else EqualRuns(measured(dtype, head, causal, bias))
    flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and not (softcap or bias)
    if flash and head % 8 == 0 and head <= 256 and torch.cuda.get_device_capability(device) >= (8, 0):
        return Varlen()
    return EqualRuns(KernelByLength())


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


@cache
def measured(dtype: torch.dtype, head: int, causal: bool, bias: bool) -> KernelByLength:
    """Measures the fastest kernel on this processor for each of a few lengths; longer sequences use the last one.

    Causal layers and layers with a `bias` are measured separately: the fused kernel skips what causal attention does
    not see, while written-out products do not; and it has to read the bias.
    """
    kernels = exact_kernels(dtype, head)
    if len(kernels) == 1:
        return KernelByLength(kernels)
    with torch.inference_mode():
        return decide([_time_shares(kernels, length, dtype, head, causal, bias) for length in LENGTHS])


def exact_kernels(dtype: torch.dtype, head: int) -> tuple[RunKernel, ...]:
    """The kernels that compute exactly on this processor for heads of `head` numbers; the usual one comes first.

    float16 has the fused kernel alone: scores that are written out in it are rounded, so that late interaction would
    be off by over a thousandth. bfloat16 needs no kernel with oneDNN: PyTorch uses oneDNN for it anyway.
    """
    if dtype == torch.float16:
        return (RunKernel.FUSED,)
    everywhere = (RunKernel.POWERS, RunKernel.SOFTMAX, RunKernel.FUSED)
    return (RunKernel.ONEDNN, *everywhere) if dtype == torch.float32 and onednn_is_exact(head) else everywhere


def decide(shares: Sequence[Mapping[RunKernel, float]]) -> KernelByLength:
    """Chooses a kernel for each of `LENGTHS`. `shares`: for each length, every kernel's time as a share of the first's.

    The usual kernel is the first one, unless another one is ahead over all lengths together; beyond the last bound it
    is the fused kernel, since the scores of a head no longer fit the cache. Near ties are noise, and workers on equal
    machines should run the same kernels: a length departs from the usual kernel only where another is clearly ahead.
    """
    *short, _ = shares
    over_all = {kernel: sum(times[kernel] for times in short) / len(short) for kernel in short[0]}
    first, best = next(iter(over_all)), min(over_all, key=over_all.__getitem__)
    usual = [best if over_all[best] < AHEAD else first] * len(short) + [RunKernel.FUSED]
    return KernelByLength(
        tuple(_clearly_fastest(times, kernel) for times, kernel in zip(shares, usual, strict=True)), BOUNDS
    )


def _clearly_fastest(shares: Mapping[RunKernel, float], usual: RunKernel) -> RunKernel:
    fastest = min(shares, key=shares.__getitem__)
    return fastest if shares[fastest] < CLEAR * shares[usual] else usual


def onednn_is_exact(head: int) -> bool:
    """Tests whether `onednn_products` multiplies in full float32; on processors with matrix units it does not."""
    generator = torch.Generator().manual_seed(0)
    for length in (64, 512):
        query, key, value = (torch.randn(HEADS, length, head, generator=generator) for _ in range(3))
        weights = torch.rand(HEADS, length, length, generator=generator)
        for left, right in ((query, key.transpose(1, 2)), (weights, value)):
            try:
                with onednn_products():
                    product = torch.bmm(left, right)
            except (AttributeError, RuntimeError):  # another build of PyTorch
                return False
            expected = torch.bmm(left.double(), right.double())
            if (product - expected).abs().max() > EXACT * expected.abs().max():
                return False
    return True


def _time_shares(
    kernels: Sequence[RunKernel], length: int, dtype: torch.dtype, head: int, causal: bool, bias: bool
) -> dict[RunKernel, float]:
    """Measures every kernel on sequences of one length, as a share of the first kernel's time: the mean of
    the shares for one sequence and for several."""
    added = torch.zeros(HEADS, length, length, dtype=dtype)
    terms = AttentionTerms(scale=head**-0.5, causal=causal, bias=(lambda query, key: added) if bias else None)
    shares = dict.fromkeys(kernels, 0.0)
    for count in (1, max(SEQUENCES, TOKENS // length)):
        batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32)] * count, torch.device("cpu"))
        query, key, value = (torch.randn(count * length, HEADS, head).to(dtype).transpose(0, 1) for _ in range(3))
        runs = {
            kernel: partial(EqualRuns(KernelByLength((kernel,))), query, key, value, batch, terms) for kernel in kernels
        }
        times = shortest_seconds(runs, RUNS)
        shares = {kernel: share + times[kernel] / times[kernels[0]] / 2 for kernel, share in shares.items()}
    return shares
