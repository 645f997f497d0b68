"""FlashAttention 3 without a Hopper: what it is asked, against the twin; what its tiles read; when it is taken."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import choice
from gpu_worker.kernels.attention.choice import AttentionShape, hopper_is_faster, hopper_refusal
from gpu_worker.kernels.attention.hopper import PACKAGE, Hopper
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model import execution
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import Model, load
from gpu_worker.ragged.batch import RaggedBatch
from support import hopper_twin, launched_cases, varlen_twin
from support.forms import found_out
from support.hopper_twin import package
from support.native import no_kernels
from support.tiny import CPU

CUDA = torch.device("cuda:0")
SHAPE = AttentionShape(head=64, heads=4, shared=2, causal=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Puts the package there, with this function in it."""
    return lambda attend: monkeypatch.setitem(sys.modules, PACKAGE, package(attend))


Install = Callable[[Callable[..., Any]], None]


@launched_cases.batches
@launched_cases.grouped
@launched_cases.terms
def test_arguments_mean_what_our_terms_mean(
    terms: AttentionTerms, groups: int, lengths: tuple[int, ...], tails: tuple[int, ...], installed: Install
) -> None:
    """Causality, exclusive windows, grouped heads, keys that do not count."""
    installed(hopper_twin.of_2026)
    launched_cases.equals_the_twin(Hopper(), terms, groups, lengths, tails)


@launched_cases.terms
@pytest.mark.parametrize("tails", [(), (0, 3, 0, 29)])
@pytest.mark.parametrize("signature", [hopper_twin.of_january_2025, hopper_twin.of_august_2024])
def test_older_packages_are_asked_alike(
    signature: Callable[..., Any], tails: tuple[int, ...], terms: AttentionTerms, installed: Install
) -> None:
    """Whose arguments have another order, and whose answers another form."""
    installed(signature)
    launched_cases.equals_the_twin(Hopper(), terms, 4, launched_cases.FEW, tails)


def states(batch: RaggedBatch) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(batch.total, 2, 8).transpose(0, 1) for _ in range(3))
    return query, key, value


def test_a_text_that_is_not_finite_reaches_nobody_else(installed: Install) -> None:
    """Tiles read beyond a text's end: the kernel by itself gives NaN there, ours does not. The text itself is told."""
    installed(hopper_twin.of_2026)
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in (9, 5, 30)], CPU.device)
    query, key, value = states(batch)
    expected = OneByOne()(query, key, value, batch, AttentionTerms(scale=0.5))
    for each in (query, key, value):
        each[:, 9:14] = float("nan")
    found = Hopper()(query, key, value, batch, AttentionTerms(scale=0.5))
    assert torch.isnan(found[9:14]).all()
    others = [*range(9), *range(14, 44)]
    assert torch.allclose(found[others], expected[others], atol=1e-6)
    q, k, v = (each.transpose(0, 1) for each in (query, key, value))
    bounds = (*[batch.spans[0].cu_seqlens] * 2, 30, 30)
    alone = torch.ops.selvage.hopper_attention(q, k, v, *bounds, None, 0.5, False, -1, -1)
    assert torch.isnan(alone[:9]).all()


def test_the_operator_says_what_it_gives(installed: Install) -> None:
    """To a compiler, by shapes that are symbols; PyTorch's own check of operators."""
    installed(hopper_twin.of_2026)
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in (9, 5)], CPU.device)
    q, k, v = (each.transpose(0, 1) for each in states(batch))
    bounds = (*[batch.spans[0].cu_seqlens] * 2, 9, 9)
    arguments = (q, k[:, :1], v[:, :1], *bounds, None, 0.5, True, -1, -1)
    torch.library.opcheck(torch.ops.selvage.hopper_attention.default, arguments)


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "head", "attend", "refusal"),
    [
        (CUDA, (9, 0), torch.bfloat16, 64, hopper_twin.of_2026, ""),
        (CUDA, (9, 0), torch.bfloat16, 256, hopper_twin.of_august_2024, ""),
        (CUDA, (9, 0), torch.float16, 64, hopper_twin.of_2026, "it is used in bfloat16, this is float16"),
        (CUDA, (9, 0), torch.bfloat16, 32, hopper_twin.of_2026, "its heads have 64, 128, 256 numbers, these have 32"),
        (CUDA, (9, 0), torch.bfloat16, 64, hopper_twin.of_july_2024, f"{PACKAGE} is too old: it has no seqused_k"),
        (CUDA, (9, 0), torch.bfloat16, 64, None, f"{PACKAGE} cannot be imported: No module named '{PACKAGE}'"),
        (CUDA, (8, 0), torch.bfloat16, 64, hopper_twin.of_2026, None),
        (CUDA, (10, 0), torch.bfloat16, 64, hopper_twin.of_2026, None),
        (CPU.device, (9, 0), torch.bfloat16, 64, hopper_twin.of_2026, None),
    ],
)
def test_where_it_is_tried(
    device: torch.device,
    capability: tuple[int, int],
    dtype: torch.dtype,
    head: int,
    attend: Callable[..., Any] | None,
    refusal: str | None,
    installed: Install,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a Hopper, in bfloat16, with heads that it has kernels for, by a package that is new enough."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    if attend is not None:
        installed(attend)
    assert hopper_refusal(device, dtype, AttentionShape(head=head, heads=4, shared=2, causal=False)) == refusal


@pytest.mark.parametrize("shape", [SHAPE, AttentionShape(head=128, heads=8, shared=8, causal=True)])
@pytest.mark.parametrize("fastest", [Varlen.name, Hopper.name])
def test_both_are_measured_alike(
    fastest: str, shape: AttentionShape, installed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the same steps of short and of long texts, with the model's heads; PyTorch's is the usual one."""
    asked: dict[str, list[tuple[Any, ...]]] = {Varlen.name: [], Hopper.name: []}

    def attend(
        self: Varlen | Hopper, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, _: AttentionTerms
    ) -> None:
        asked[self.name].append((query.shape, key.shape, value.shape, query.dtype, batch.total, set(batch.lengths)))

    def chosen(attentions: dict[str, Callable[[], object]], usual: str, rounds: int) -> str:
        assert usual == Varlen.name
        assert rounds == choice.ROUNDS
        for run in attentions.values():
            run()
        return fastest

    for kind in (Varlen, Hopper):
        monkeypatch.setattr(kind, "__call__", attend)
    monkeypatch.setattr(choice, "clearly_fastest", chosen)
    monkeypatch.setattr(choice, "STEP", 64)
    monkeypatch.setattr(choice, "STEP_LENGTHS", (4, 32))
    assert hopper_is_faster(Varlen(), CPU.device, torch.bfloat16, shape) == (fastest == Hopper.name)
    heads, shared = ((number, 64, shape.head) for number in (shape.heads, shape.shared))
    expected = [(heads, shared, shared, torch.bfloat16, 64, {length}) for length in (4, 32)]
    assert asked == {Varlen.name: expected, Hopper.name: expected}


@pytest.fixture(autouse=True)
def twins() -> Iterator[None]:
    """What stands for both kernels on a processor."""
    varlen_twin.install()
    yield
    torch.compiler.reset()


def loaded(monkeypatch: pytest.MonkeyPatch, refusal: str | None = "", faster: bool = True) -> Model:
    """As on a Hopper."""
    no_kernels(monkeypatch)
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: Varlen())
    monkeypatch.setattr(execution.attention_choice, "hopper_refusal", lambda *_: refusal)
    monkeypatch.setattr(execution.attention_choice, "hopper_is_faster", lambda *_: faster)
    return load("random:tiny-bert", CPU, max_tokens=64)


def test_it_serves_where_it_is_clearly_faster(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the gate; the card and the log say so."""
    installed(hopper_twin.of_2026)
    model = loaded(monkeypatch)
    assert isinstance(model.encoder, PackedEncoder)
    assert model.encoder.description == "FlashAttention 3"
    assert found_out(model) == ["FlashAttention 3 is clearly faster than varlen"]


def doubled(*arguments: Any, **keywords: Any) -> Tensor:
    return 2 * hopper_twin.of_2026(*arguments, **keywords)


def broken(*arguments: Any, **keywords: Any) -> Tensor:
    raise RuntimeError("no kernel image is available\nfor this device")


@pytest.mark.parametrize(
    ("refusal", "faster", "attend", "told"),
    [
        ("", False, hopper_twin.of_2026, "no FlashAttention 3: it is not clearly faster than varlen"),
        ("", True, doubled, "no FlashAttention 3: ModelRefused: it does not run among other texts as it runs alone"),
        ("", True, broken, "no FlashAttention 3: RuntimeError: no kernel image is available"),
        ("it is too old", True, broken, "no FlashAttention 3: it is too old"),
        (None, True, broken, None),
    ],
    ids=["not faster", "wrong", "broken", "refused", "no Hopper"],
)
def test_else_the_usual_attention_serves(
    refusal: str | None,
    faster: bool,
    attend: Callable[..., Any],
    told: str | None,
    installed: Install,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one line says why, where somebody would expect the other."""
    installed(attend)
    model = loaded(monkeypatch, refusal, faster)
    assert model.encoder.description == "varlen"
    assert not model.unpacked_reason
    found = found_out(model)
    assert [line[: len(told or "")] for line in found] == ([told] if told else [])
    assert not any("\n" in line for line in found)
