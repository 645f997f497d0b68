"""Attention of a piece, wherever the keys before it lie, equals the rows of one run over the whole sequence, in every
kernel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen
from transformers import GPT2Config

from gpu_worker.kernels.attention import equal_runs, interface
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import (
    AttentionTerms,
    OneByOne,
    PackedAttention,
    PieceAttention,
    register,
)
from gpu_worker.kernels.attention.native_attention import NativeAttention
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model import execution
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tuning import verify
from gpu_worker.model.verify.gate import take_reference
from gpu_worker.model.verify.piece_check import reason_for_whole_texts
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import KeySlots, Piece, SequenceCache, first_slots
from harness.random_models import synthetic
from support import varlen_twin
from support.flaws import Flawed
from support.native import LIBRARY, needs_kernels
from support.random_models import random_model
from support.tiny import CPU, referee

TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
"""Largest error, where numbers are about 1."""
SIZES = st.integers(1, 5) | st.integers(1, 70)
CUTS = st.lists(SIZES | st.just(1), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) <= 300)
"""Numbers of tokens of the pieces of a sequence."""
HEADS = st.sampled_from([(4, 4), (4, 2), (3, 1)])
OTHER_WIDTH = 20
WIDTHS = st.sampled_from([(16, 16), (32, 16), (32, 32), (OTHER_WIDTH, 12)])
"""Numbers of a head of queries and keys, and of values; the processor's kernel leaves `OTHER_WIDTH` to PyTorch's."""


def terms(*, launched: bool = False) -> st.SearchStrategy[AttentionTerms]:
    """Causal terms; `launched`: those that CUDA's kernels are given."""
    return st.builds(
        AttentionTerms,
        scale=st.sampled_from([0.06, 0.25]),
        causal=st.just(True),
        window=st.none() | st.integers(1, 100),
        softcap=st.none() if launched else st.none() | st.just(5.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Query [H, L, D], key [Hkv, L, D] and value [Hkv, L, V] of a sequence, with the strides of a model's layers."""

    query: Tensor
    key: Tensor
    value: Tensor

    @classmethod
    def of(
        cls, length: int, heads: tuple[int, int], widths: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> "States":
        torch.manual_seed(length)
        shapes = ((heads[0], widths[0]), (heads[1], widths[0]), (heads[1], widths[1]))
        query, key, value = (torch.randn(length, *shape).to(dtype).transpose(0, 1) for shape in shapes)
        return cls(query=query, key=key, value=value)

    def whole(self, attention: PackedAttention, terms: AttentionTerms) -> Tensor:
        """The attention of all tokens in one run: [L, H, V]."""
        batch = RaggedBatch.pack([np.zeros(self.query.shape[1], dtype=np.int32)], CPU.device)
        return attention(self.query, self.key, self.value, batch, terms)

    def pieces(self, attention: PackedAttention, terms: AttentionTerms, sizes: list[int]) -> Tensor:
        """The attention of one piece after the other, each with the keys and values up to its own end."""
        parts, start = [], 0
        for size in sizes:
            stop = start + size
            query, key, value = self.query[:, start:stop], self.key[:, :stop], self.value[:, :stop]
            parts.append(attention.attend_piece(query, key, value, terms))
            start = stop
        return torch.cat(parts)

    def behind(self, seed: int) -> "Behind":
        """These states as a batch has them whose pieces end the sequence: some keys before them lie in a cache, the
        others in any order among the rows of the batch."""
        length, chance = self.query.shape[1], np.random.default_rng(seed)
        cuts = chance.integers(1, length, chance.integers(1, 4)) if length > 1 else np.zeros(1, dtype=np.int64)
        cached = int(chance.integers(0, cuts.max() + 1))
        places = chance.permutation(int(cuts.max()) - cached)
        cache, text = SequenceCache(cached), np.zeros(length, dtype=np.int32)
        for buffer, states in zip(cache.layer(0, self.key, self.value), (self.key, self.value), strict=True):
            buffer.copy_(states[:, :cached].transpose(0, 1))
        slots = [
            *([KeySlots(cache, 0, cached)] if cached else []),
            *(KeySlots(None, place, 1) for place in places.tolist()),
        ]
        pieces = [Piece(text, cut, length, shared=first_slots(slots, cut)) for cut in cuts.tolist()]
        batch = RaggedBatch.pack([text[: len(places)]] if len(places) else [], CPU.device, pieces=pieces)
        own = np.concatenate([np.arange(cut, length) for cut in cuts])
        order = torch.from_numpy(np.concatenate([cached + np.argsort(places), own]))
        query, key, value = (
            states.transpose(0, 1)[order].transpose(0, 1) for states in (self.query, self.key, self.value)
        )
        states = States(query=query, key=key, value=value)
        return Behind(states=states, batch=batch, first=len(places), rows=torch.from_numpy(own))


@dataclass(frozen=True, kw_only=True)
class Behind:
    """`states` of a `batch`, whose pieces are its tokens from `first` on, and the `rows` of these in the whole run."""

    states: States
    batch: RaggedBatch
    first: int
    rows: Tensor

    def run(self, attention: PackedAttention, terms: AttentionTerms) -> Tensor:
        """The attention of the pieces."""
        states = self.states.query, self.states.key, self.states.value
        return PieceAttention(attention)(*states, self.batch, terms)[self.first :]


FORMATS = sorted(LIBRARY.formats, key=str)
EXAMPLES = [40, pytest.param(1500, marks=pytest.mark.slow)]
EXACT = st.just(torch.float32)
KERNELS = {
    "the twin": (OneByOne, terms(), WIDTHS, EXACT),
    "equal runs": (EqualRuns, terms(), WIDTHS, EXACT),
    "the processor's kernel": (partial(NativeAttention, LIBRARY), terms(), WIDTHS, st.sampled_from(FORMATS or [None])),
    "the kernel of accelerators": (Varlen, terms(launched=True), st.sampled_from([(8, 8), (16, 16)]), EXACT),
}
"""What makes each; the terms, widths and number formats that it takes. Heads of other sizes than its own the
processor's kernel leaves to PyTorch's; bounds of queries and keys differ for accelerators."""


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_kernels if "processor" in name else ()) for name in KERNELS]
)
def test_pieces_equal_the_whole(name: str, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernel's whole run, wherever keys lie, and no further than it from the twin's run in float32; how far a
    whole run may be from the twin is what other tests say. By the processor's kernel they have the same bits, on which
    `bitwise_invariant` relies.

    Of any cuts, windows, softcaps, grouped heads; softcaps in blocks of several heads or less than a row of one.
    """
    monkeypatch.setattr(varlen, "varlen_attn", varlen_twin.of_2_13)
    made, terms, widths, dtypes = KERNELS[name]

    @settings(deadline=None, max_examples=examples)
    @given(CUTS, terms, HEADS, widths, dtypes, st.integers(1, 2000) | st.just(1 << 20))
    def check(
        sizes: list[int],
        terms: AttentionTerms,
        heads: tuple[int, int],
        widths: tuple[int, int],
        dtype: torch.dtype,
        block: int,
    ) -> None:
        attention, states = made(), States.of(sum(sizes), heads, widths, dtype)
        behind, tolerance = states.behind(len(sizes)), TOLERANCES[dtype]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(equal_runs, "BLOCK_SCORES", block)
            pieces, whole = states.pieces(attention, terms, sizes), states.whole(attention, terms)
            rows_behind = behind.run(attention, terms)
            exact = States(query=states.query.float(), key=states.key.float(), value=states.value.float())
            reference = exact.whole(OneByOne(), terms)
        for rows, expected in ((pieces, whole), (rows_behind, whole[behind.rows])):
            assert torch.allclose(rows, expected, atol=tolerance)
            if isinstance(attention, NativeAttention) and widths[0] != OTHER_WIDTH:
                assert torch.equal(rows, expected)
        error, error_of_whole = ((rows.float() - reference).abs().max() for rows in (pieces, whole))
        assert error <= error_of_whole + tolerance

    check()


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("tiny-qwen3", "forgets the past"),
        ("tiny-qwen3", "upper-left mask"),
        ("tiny-mistral", "windows begin anew"),
        ("tiny-mistral", "windows of pieces off by one"),
    ],
)
def test_the_gate_refuses_pieces_that_are_computed_wrong(name: str, flaw: str) -> None:
    register()
    config, _ = synthetic.shape_of(name)
    model = synthetic.build(config, "encoder", CPU).eval()
    reference = referee(model)
    assert not reason_for_whole_texts(PackedEncoder(model, Flawed("none"), None), reference)
    assert "differ" in reason_for_whole_texts(PackedEncoder(model, Flawed(flaw), None), reference)


@pytest.mark.parametrize(
    ("cached", "wrong"),
    [(False, slice(0, 1)), (False, slice(1, -1)), (True, slice(0, 1)), (True, slice(1, None))],
    ids=["rows of another text", "rows of another follower", "another text's cache", "its own cache"],
)
def test_the_gate_refuses_pieces_that_attend_to_wrong_slots(
    cached: bool, wrong: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    config, _ = synthetic.shape_of("tiny-qwen3")
    model = synthetic.build(config, "encoder", CPU).eval()
    reference, encoder, honest = referee(model), PackedEncoder(model, OneByOne(), None), interface._states_of

    def flawed(slots: Sequence[KeySlots], *states: Any) -> Tensor:
        read = list(slots)
        if (read[-1].cache is not None) == cached:
            read[wrong] = [some._replace(first=some.first + (-1 if some.first else 1)) for some in read[wrong]]
        return honest(read, *states)

    assert not reason_for_whole_texts(encoder, reference)
    monkeypatch.setattr(interface, "_states_of", flawed)
    assert reason_for_whole_texts(encoder, reference).startswith("its texts do not run in pieces as they run whole")


def test_the_gate_needs_no_more_positions_than_a_model_has() -> None:
    """GPT-2's table ends with its longest text, and so do the texts that others begin as."""
    register()
    config = GPT2Config(n_positions=64, n_embd=64, n_layer=2, n_head=4, vocab_size=300, bos_token_id=1, eos_token_id=2)
    model = synthetic.build(config, "encoder", CPU).eval()
    reference = take_reference(model, Probes.of(model.config, 64, limit=64))
    execution.make_packed(model)
    assert max(map(len, reference.probes.texts)) == 64
    assert not reason_for_whole_texts(PackedEncoder(model, OneByOne(), None), reference)


def test_texts_share_nothing_on_an_accelerator() -> None:
    model = load(random_model("tiny-qwen3"), CPU, LoadOptions(max_tokens=64))
    assert not model.unshared
    config, _ = synthetic.shape_of("tiny-qwen3")
    base = synthetic.build(config, "encoder", CPU).eval()
    reference = referee(base)
    elsewhere = PackedEncoder(base.to("meta"), OneByOne(), None)
    unshared = verify(replace(model, encoder=elsewhere), reference, LoadOptions()).unshared
    assert unshared == "texts share first tokens on processors only"
