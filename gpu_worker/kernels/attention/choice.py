"""The choice of the attention kernel for a device, made once at load."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from gpu_worker.device.fastest import CLEAR, Clock, clearly_fastest, shortest_seconds
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
TOKENS, SEQUENCES, HEADS = 512, 4, 12
"""Sizes of a measurement: about 512 tokens in at least 4 sequences of 12 heads, and a single sequence, as texts of many
lengths arrive."""
VISITS, RUNS = 5, 1
"""How often each measurement is visited after all others, and how often every kernel runs in a visit, after a run that
does not count. What disturbs the machine for a moment spoils one visit of a few measurements; the shortest run of all
visits counts."""
Runs = Mapping[tuple[int, int], Mapping[RunKernel, Callable[[], object]]]
"""What is measured: by the length and the number of sequences, a run of each kernel, the usual one first."""
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
    runs = {
        (length, count): _runs(kernels, length, count, dtype, head, causal, bias)
        for length in LENGTHS
        for count in (1, max(SEQUENCES, TOKENS // length))
    }
    with torch.inference_mode():
        return decide(time_shares(runs))


def exact_kernels(dtype: torch.dtype, head: int) -> tuple[RunKernel, ...]:
    """The kernels that compute exactly on this processor for heads of `head` numbers; the usual one comes first.

    float16 has the fused kernel alone: scores that are written out in it are rounded, so that late interaction would
    be off by over a thousandth. bfloat16 needs no kernel with oneDNN: PyTorch uses oneDNN for it anyway. Its usual
    kernel is the fused one, which is ahead where processors have matrix units; elsewhere powers are clearly ahead.
    """
    if dtype == torch.float16:
        return (RunKernel.FUSED,)
    if dtype == torch.bfloat16:
        return (RunKernel.FUSED, RunKernel.POWERS, RunKernel.SOFTMAX)
    everywhere = (RunKernel.POWERS, RunKernel.SOFTMAX, RunKernel.FUSED)
    return (RunKernel.ONEDNN, *everywhere) if onednn_is_exact(head) else everywhere


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


def time_shares(runs: Runs, clock: Clock = time.thread_time) -> list[dict[RunKernel, float]]:
    """Measures every kernel on sequences of each length, as a share of the usual kernel's time: the mean of the shares
    for one sequence and for several.

    The thread's own time counts: what other processes take from a busy processor tells nothing of a kernel.
    """
    times: dict[tuple[int, int], dict[RunKernel, float]] = {}
    for _ in range(VISITS):
        for size, by_kernel in runs.items():
            before, now = times.get(size, {}), shortest_seconds(by_kernel, RUNS, clock)
            times[size] = {kernel: min(seconds, before.get(kernel, seconds)) for kernel, seconds in now.items()}
    return [
        _mean_shares([by_kernel for (other, _), by_kernel in times.items() if other == length])
        for length in dict.fromkeys(length for length, _ in times)
    ]


def _mean_shares(times: Sequence[Mapping[RunKernel, float]]) -> dict[RunKernel, float]:
    """Every kernel's mean share of the first kernel's time, over several measurements."""
    first, *_ = times[0]
    return {kernel: sum(size[kernel] / size[first] for size in times) / len(times) for kernel in times[0]}


def _runs(
    kernels: Sequence[RunKernel], length: int, count: int, dtype: torch.dtype, head: int, causal: bool, bias: bool
) -> dict[RunKernel, Callable[[], object]]:
    """A run of each kernel over `count` sequences of one length."""
    added = torch.zeros(HEADS, length, length, dtype=dtype)
    terms = AttentionTerms(scale=head**-0.5, causal=causal, bias=(lambda query, key: added) if bias else None)
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32)] * count, torch.device("cpu"))
    query, key, value = (torch.randn(count * length, HEADS, head).to(dtype).transpose(0, 1) for _ in range(3))
    return {
        kernel: partial(EqualRuns(KernelByLength((kernel,))), query, key, value, batch, terms) for kernel in kernels
    }
