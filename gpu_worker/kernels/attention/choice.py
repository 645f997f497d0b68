"""Which attention a device runs, told once at load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from gpu_worker.device.fastest import CLEAR, clearly_fastest, shortest_seconds
from gpu_worker.kernels.attention import hopper
from gpu_worker.kernels.attention.equal_runs import EqualRuns, RunKernel, Ways
from gpu_worker.kernels.attention.hopper import Hopper
from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.kernels.attention.written_out import onednn_products
from gpu_worker.ragged.batch import RaggedBatch

BOUNDS = (16, 32, 64, 128, 256)
LENGTHS = (11, 23, 47, 95, 191, 383)
"""Measured for sequences of up to each bound, and beyond. Odd, as lengths of texts mostly are: PyTorch's softmax is
at its best where rows are a multiple of its vectors."""
TOKENS, SEQUENCES, HEADS, TURNS = 512, 4, 12, 8
"""Of what is measured: one sequence, as texts of many lengths come, and so many, of about so many tokens; runs of each
way."""
AHEAD = 0.9
"""Of the usual way's time: over all lengths another one has to take less. Noise evens out over them, so that less of a
lead is enough than for one length."""
ROUNDS = 6
"""Of each attention on an accelerator, in each trial."""
STEP, STEP_LENGTHS = 8192, (128, 512, 2048)
"""Tokens of each step that is measured on an accelerator, and of its texts."""
EXACT = 1e-5
"""Of the largest product; factors rounded to bfloat16 are off by a hundred times as much."""


def choose(
    device: torch.device, dtype: torch.dtype, head: int, *, causal: bool, softcap: bool, bias: bool
) -> PackedAttention:
    """The fastest attention that this device, number format and model allow."""
    if device.type == "cpu":
        return EqualRuns(measured(dtype, head, causal, bias))
    flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and not (softcap or bias)
    if flash and head % 8 == 0 and head <= 256 and torch.cuda.get_device_capability(device) >= (8, 0):
        return Varlen()
    return EqualRuns(Ways())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Of a model's layers: `head` numbers a head, `heads` for queries, `shared` ones for keys and values."""

    head: int
    heads: int
    shared: int
    causal: bool


def hopper_refusal(device: torch.device, dtype: torch.dtype, shape: AttentionShape) -> str | None:
    """Why FlashAttention 3 is not to be tried on this device; "" where it is, None where nobody would expect it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    return hopper.refusal(dtype, shape.head)


def faster_than(usual: PackedAttention, device: torch.device, dtype: torch.dtype, shape: AttentionShape) -> bool:
    """Whether FlashAttention 3 is clearly faster than the `usual` attention: over steps of short and of long texts."""
    batches = [RaggedBatch.pack([np.zeros(each, dtype=np.int32)] * (STEP // each), device) for each in STEP_LENGTHS]
    terms = AttentionTerms(scale=shape.head**-0.5, causal=shape.causal)
    query, key, value = (
        torch.randn(STEP, each, shape.head, device=device).to(dtype).transpose(0, 1)
        for each in (shape.heads, shape.shared, shape.shared)
    )

    def run(attention: PackedAttention) -> None:
        for batch in batches:
            attention(query, key, value, batch, terms)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    attentions = {each.name: partial(run, each) for each in (usual, Hopper())}
    with torch.inference_mode():
        return clearly_fastest(attentions, usual.name, ROUNDS) == Hopper.name


@cache
def measured(dtype: torch.dtype, head: int, causal: bool, bias: bool) -> Ways:
    """The fastest way of this processor for each of a few lengths; beyond them, that of the longest.

    The fused kernel leaves out what causal attention does not see, products do not; and it has to read a `bias`: such
    layers are measured apart.
    """
    ways = exact_ways(dtype, head)
    if len(ways) == 1:
        return Ways(ways)
    with torch.inference_mode():
        return decide([_shares(ways, length, dtype, head, causal, bias) for length in LENGTHS])


def exact_ways(dtype: torch.dtype, head: int) -> tuple[RunKernel, ...]:
    """The ways whose numbers are right on this processor, the usual one first, for heads of so many numbers.

    float16 has the fused kernel alone, since scores written out in it are rounded: late interaction's would be over a
    thousandth off. bfloat16 needs no way of oneDNN's: PyTorch takes oneDNN for it by itself.
    """
    if dtype == torch.float16:
        return (RunKernel.FUSED,)
    everywhere = (RunKernel.POWERS, RunKernel.SOFTMAX, RunKernel.FUSED)
    return (RunKernel.ONEDNN, *everywhere) if dtype == torch.float32 and onednn_is_exact(head) else everywhere


def decide(shares: Sequence[Mapping[RunKernel, float]]) -> Ways:
    """For each of `LENGTHS` the time that each way takes, as a share of the first one's.

    The first is the usual way, unless another one is ahead over all lengths together; beyond the last bound the fused
    kernel is, since scores of a head leave the cache. Near ties are noise, and workers of a kind should run alike: one
    length has a way of its own only where that is clearly ahead.
    """
    *short, _ = shares
    over_all = {way: sum(each[way] for each in short) / len(short) for way in short[0]}
    first, best = next(iter(over_all)), min(over_all, key=over_all.__getitem__)
    usual = [best if over_all[best] < AHEAD else first] * len(short) + [RunKernel.FUSED]
    return Ways(tuple(_clearly(each, way) for each, way in zip(shares, usual, strict=True)), BOUNDS)


def _clearly(shares: Mapping[RunKernel, float], usual: RunKernel) -> RunKernel:
    fastest = min(shares, key=shares.__getitem__)
    return fastest if shares[fastest] < CLEAR * shares[usual] else usual


def onednn_is_exact(head: int) -> bool:
    """Whether products under `onednn_products` are float32's own here: on processors with matrix units they are not."""
    generator = torch.Generator().manual_seed(0)
    for length in (64, 512):
        query, key, value = (torch.randn(HEADS, length, head, generator=generator) for _ in range(3))
        weights = torch.rand(HEADS, length, length, generator=generator)
        for left, right in ((query, key.transpose(1, 2)), (weights, value)):
            try:
                with onednn_products():
                    found = torch.bmm(left, right)
            except (AttributeError, RuntimeError):  # another build of PyTorch
                return False
            expected = torch.bmm(left.double(), right.double())
            if (found - expected).abs().max() > EXACT * expected.abs().max():
                return False
    return True


def _shares(
    ways: Sequence[RunKernel], length: int, dtype: torch.dtype, head: int, causal: bool, bias: bool
) -> dict[RunKernel, float]:
    """What each way takes for sequences of that length, as a share of the first one's time: for one and for several,
    their mean."""
    added = torch.zeros(HEADS, length, length, dtype=dtype)
    terms = AttentionTerms(scale=head**-0.5, causal=causal, bias=(lambda query, key: added) if bias else None)
    shares = dict.fromkeys(ways, 0.0)
    for count in (1, max(SEQUENCES, TOKENS // length)):
        batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32)] * count, torch.device("cpu"))
        query, key, value = (torch.randn(count * length, HEADS, head).to(dtype).transpose(0, 1) for _ in range(3))
        runs = {way: partial(EqualRuns(Ways((way,))), query, key, value, batch, terms) for way in ways}
        times = shortest_seconds(runs, TURNS)
        shares = {way: share + times[way] / times[ways[0]] / 2 for way, share in shares.items()}
    return shares
