"""The processor's attention kernel equals its twin and gives a token the same bits in every batch, on every instruction
set; a worker without it says so and serves."""

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import choice, native_attention
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.native_attention import NativeAttention, attention
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.library import INSTRUCTION_SETS, supported
from gpu_worker.model.loading import load
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.ragged.batch import RaggedBatch
from support.biases import louder, nearer
from support.native import EMULATED, LIBRARY, emulated_instructions, has_itself, needs_kernels
from support.random_models import random_model

pytestmark = needs_kernels
CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
"""Largest error, where numbers are about 1."""


TERMS = st.builds(
    AttentionTerms,
    scale=st.sampled_from([0.06, 0.25, -0.25]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 300),
    softcap=st.none() | st.just(5.0),
    bias=st.sampled_from([None, nearer, louder]),
)
LENGTHS = st.integers(1, 20) | st.integers(1, 600)
SEQUENCES = st.lists(LENGTHS.flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length - 1))), min_size=1)


def batch_of(sequences: list[tuple[int, int]]) -> RaggedBatch:
    """Sequences of (length, unattended tokens at its end)."""
    return RaggedBatch.pack(
        [np.zeros(length, dtype=np.int32) for length, _ in sequences], CPU, tails=[tail for _, tail in sequences]
    )


def states_of(batch: RaggedBatch, dtype: torch.dtype, heads: tuple[int, int], head: int) -> tuple[Tensor, ...]:
    """Query, key and value with the strides of a model's layers."""
    torch.manual_seed(batch.total)
    return tuple(
        torch.randn(batch.total, count, head).to(dtype).transpose(0, 1) for count in (heads[0], heads[1], heads[1])
    )


@given(
    SEQUENCES.filter(lambda sequences: sum(length for length, _ in sequences) < 1500),
    TERMS,
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.sampled_from([16, 32, 48, 80, 256]),
    st.sampled_from(sorted(LIBRARY.formats, key=str)),
)
def test_it_equals_one_by_one(
    sequences: list[tuple[int, int]], terms: AttentionTerms, heads: tuple[int, int], head: int, dtype: torch.dtype
) -> None:
    """Any lengths, tails, causality, windows, softcap, bias, grouped heads and sizes of heads."""
    batch = batch_of(sequences)
    query, key, value = states_of(batch, dtype, heads, head)
    terms = replace(terms, scale=terms.scale * (16 / head) ** 0.5)
    ours = NativeAttention(LIBRARY)(query, key, value, batch, terms)
    expected = OneByOne()(query.float(), key.float(), value.float(), batch, terms)
    defined = torch.isfinite(expected).all(dim=2)  # softmax over nothing is NaN; the kernel gives zeros
    assert ours.dtype == dtype
    assert torch.allclose(ours[defined].float(), expected[defined], atol=TOLERANCES[dtype])
    assert not ours[~defined].any()


@given(
    SEQUENCES.filter(lambda sequences: sum(length for length, _ in sequences) < 1500),
    TERMS.filter(lambda terms: terms.bias is None),
    st.sampled_from(sorted(LIBRARY.formats, key=str)),
)
def test_bits_do_not_depend_on_neighbours(
    sequences: list[tuple[int, int]], terms: AttentionTerms, dtype: torch.dtype
) -> None:
    """A sequence alone gives the bits that it gives among others."""
    batch = batch_of(sequences)
    states = states_of(batch, dtype, (4, 2), 32)
    together = NativeAttention(LIBRARY)(*states, batch, terms)
    for start, sequence in zip(batch.offsets.tolist(), sequences, strict=False):
        rows = slice(start, start + sequence[0])
        alone = NativeAttention(LIBRARY)(*(state[:, rows] for state in states), batch_of([sequence]), terms)
        assert torch.equal(alone, together[rows])


@given(
    st.integers(1, 900),
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    TERMS.filter(lambda terms: terms.bias is None),
    st.sampled_from(sorted(LIBRARY.formats, key=str)),
)
def test_queries_with_a_past_get_the_bits_of_the_whole(
    length: int, pieces: list[int], terms: AttentionTerms, dtype: torch.dtype
) -> None:
    """Queries that come in pieces, each with the keys of all tokens."""
    batch = batch_of([(length, 0)])
    query, key, value = states_of(batch, dtype, (4, 2), 64)
    whole = NativeAttention(LIBRARY)(query, key, value, batch, terms)
    first = 0
    for piece in [*pieces, length]:
        count = min(piece, length - first)
        layout = torch.tensor([[0, count, 0, length, first]])
        part = attention(query[:, first : first + count], key, value, layout, terms, None)
        assert torch.equal(part, whole[first : first + count])
        first += count


@given(
    st.lists(st.tuples(LENGTHS, st.floats(0, 1)), min_size=1, max_size=4),
    st.lists(LENGTHS, max_size=2),
    TERMS.filter(lambda terms: terms.bias is None and terms.causal),
    st.sampled_from(sorted(LIBRARY.formats, key=str)),
)
def test_sequences_with_caches_get_the_bits_of_the_whole(
    cached: list[tuple[int, float]], whole: list[int], terms: AttentionTerms, dtype: torch.dtype
) -> None:
    """In one call, whole sequences and behind them later parts of others, whose keys and values lie in memory of their
    own, where those of tokens that are still to come are not yet there."""
    lengths = [*whole, *(length for length, _ in cached)]
    batch = batch_of([(length, 0) for length in lengths])
    states = states_of(batch, dtype, (4, 2), 48)
    expected = NativeAttention(LIBRARY)(*states, batch, terms)
    starts = [0] * len(whole) + [int(share * (length - 1)) for length, share in cached]
    stops = [
        *whole,
        *((start + length + 1) // 2 for start, (length, _) in zip(starts[len(whole) :], cached, strict=True)),
    ]
    bounds = list(zip(batch.offsets.tolist(), starts, stops, strict=False))
    rows = torch.cat([torch.arange(first + start, first + stop) for first, start, stop in bounds])
    layout, segments, buffers, row = list[list[int]](), list[list[int]](), list[Tensor](), 0
    for number, (first, start, stop) in enumerate(bounds):
        layout.append([row, stop - start, row, stop, start])
        row += stop - start
        if number >= len(whole):
            segments.append([number, number - len(whole), 0, stop])
            for of_all in states[1:]:
                memory = torch.full((lengths[number], 2, 48), float("nan"), dtype=dtype)
                memory[:stop] = of_all[:, first : first + stop].transpose(0, 1)
                buffers.append(memory)
    query, key, value = (of_all[:, rows] for of_all in states)
    slots = torch.tensor(segments, dtype=torch.int64).reshape(-1, 4)
    ours = attention(query, key, value, torch.tensor(layout), terms, None, slots, buffers)
    assert torch.equal(ours, expected[rows])


CACHE = [(20, 2, 32), (20, 2, 32)]
WHOLE = [[0, 8, 0, 8, 0]]
REFUSED = [
    (WHOLE, [(8, 2, 32)], [0, 0, 0, 8], "a cache has keys and values"),
    (WHOLE, [(8, 2, 16), (8, 2, 32)], [0, 0, 0, 8], "must be like the keys"),
    (WHOLE, [(8, 2, 32), (8, 1, 32)], [0, 0, 0, 8], "must be like the keys"),
    (WHOLE, [(9, 2, 32), (7, 2, 32)], [0, 0, 0, 8], "segment 0 lies outside"),
    (WHOLE, CACHE, [0, 0, 13, 8], "segment 0 lies outside"),
    (WHOLE, CACHE, [0, -1, 1, 8], "segment 0 lies outside"),
    (WHOLE, CACHE, [0, 0, -1, 8], "segment 0 lies outside"),
    (WHOLE, CACHE, [0, 0, 0, 7], "sequence 0 has keys outside"),
    (WHOLE, CACHE, [0, 1, 0, 8], "there is no cache 1"),
    (WHOLE, CACHE, [1, 0, 0, 8], "in the order of the sequences"),
    ([[0, 9, 0, 8, 0]], [], [], "sequence 0 lies outside"),
    ([*WHOLE, [0, 8, 1, 8, 0]], [], [], "sequence 1 has keys outside"),
    ([[0, 8, 0, 8, -1]], [], [], "sequence 0 lies outside"),
    ([[0, 8, 0, 8]], [], [], r"must be \[n, 5\]"),
]


@pytest.mark.parametrize(("layout", "shapes", "segment", "reason"), REFUSED)
def test_layouts_and_slots_that_do_not_fit_are_refused(
    layout: list[list[int]], shapes: list[tuple[int, ...]], segment: list[int], reason: str
) -> None:
    query, key, value = states_of(batch_of([(8, 0)]), torch.float32, (2, 2), 32)
    slots = (torch.tensor([segment]), [torch.zeros(shape) for shape in shapes]) if segment else ()
    with pytest.raises(RuntimeError, match=reason):
        attention(query, key, value, torch.tensor(layout), AttentionTerms(scale=1.0), None, *slots)


@pytest.mark.skipif(
    EMULATED != "amx" or has_itself("amx_bf16"), reason="make emulated alone, on processors without AMX"
)
def test_products_are_made_by_emulated_tiles() -> None:
    """Else the tests would pass by instructions of the processor at hand."""
    batch, before = batch_of([(3, 0)]), emulated_instructions()
    NativeAttention(LIBRARY)(*states_of(batch, torch.bfloat16, (1, 1), 32), batch, AttentionTerms(scale=0.2))
    assert emulated_instructions() > before


def test_large_scores_overflow_nothing() -> None:
    """Scores of some thousands, one of them far ahead: softmax takes the first alone."""
    batch = batch_of([(300, 0)])
    query, key, value = states_of(batch, torch.float32, (2, 2), 16)
    key = key.clone()
    key[:, 7] = query[:, 0] * 1000
    ours = NativeAttention(LIBRARY)(query, key, value, batch, AttentionTerms(scale=3.0))
    assert torch.isfinite(ours).all()
    assert torch.allclose(ours[0], value[:, 7], rtol=1e-6)


def test_a_bias_may_hide_whole_blocks() -> None:
    """Of a row whose first 256 keys are hidden, and one that sees nothing at all."""
    batch = batch_of([(300, 0)])
    query, key, value = states_of(batch, torch.float32, (2, 2), 16)
    hidden = torch.zeros(300, 300)
    hidden[5, :290] = float("-inf")
    hidden[6] = float("-inf")
    terms = AttentionTerms(scale=0.25, bias=lambda query, _: hidden)
    ours = NativeAttention(LIBRARY)(query, key, value, batch, terms)
    expected = OneByOne()(query, key, value, batch, terms)
    defined = torch.isfinite(expected).all(dim=2)
    assert torch.allclose(ours[defined], expected[defined], atol=5e-6)
    assert not ours[6].any()


def test_a_bias_of_one_key_may_lie_anyhow() -> None:
    """PyTorch takes a column of one number for contiguous, whatever its stride, as DeBERTa's own options make it."""
    batch = batch_of([(1, 0), (1, 0)])
    query, key, value = states_of(batch, torch.float32, (2, 2), 16)
    column = torch.full((1, 2, 1, 5), 0.5).transpose(2, 3)[:, :, :1]
    assert column.stride(3) == 5
    ours = NativeAttention(LIBRARY)(query, key, value, batch, AttentionTerms(scale=0.25, bias=lambda *_: column))
    assert torch.equal(ours, value.transpose(0, 1))


@pytest.mark.parametrize("scale", [0.0, 1e8])
def test_scores_of_any_size_give_numbers(scale: float) -> None:
    """All equal, and so large that a score's own rounding is above 1."""
    batch = batch_of([(300, 2)])
    states = states_of(batch, torch.float32, (2, 2), 16)
    for window in (None, 7):
        terms = AttentionTerms(scale=scale, causal=True, window=window)
        ours = NativeAttention(LIBRARY)(*states, batch, terms)
        assert torch.isfinite(ours).all()
        if not scale:
            expected = torch.nan_to_num(OneByOne()(*states, batch, terms))
            assert torch.allclose(ours, expected, atol=5e-6)


def test_states_that_the_kernel_cannot_read_are_refused() -> None:
    """Pairs of bfloat16 must begin at even places; a bias must have all queries and keys."""
    layout = torch.tensor([[0, 4, 0, 4, 0]])
    states = torch.zeros(1, 4, 32)
    with pytest.raises(RuntimeError, match="bias must have all queries and keys"):
        attention(states, states, states, layout, AttentionTerms(scale=1.0), torch.zeros(1, 1, 4, 3))
    odd = torch.zeros(1, 4, 33, dtype=torch.bfloat16)[:, :, :32]
    with pytest.raises(RuntimeError, match="strides must be even"):
        attention(odd, odd, odd, layout, AttentionTerms(scale=1.0), None)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF])
def test_numbers_that_are_none_stay_in_their_sequence(bits: int) -> None:
    """A NaN in one text reaches no other text; one in a query gives its own row alone."""
    batch = batch_of([(40, 0), (40, 0)])
    query, key, value = states_of(batch, torch.float32, (2, 2), 32)
    query.view(torch.int32)[:, 3] = bits
    terms = AttentionTerms(scale=0.2)
    ours = NativeAttention(LIBRARY)(query, key, value, batch, terms)
    assert ours.isnan().any(dim=2).all(dim=1).nonzero().tolist() == [[3]]
    for states in (key, value):
        states[:, 3] = float("nan")
    ours = NativeAttention(LIBRARY)(query, key, value, batch, terms)
    assert ours[:40].isnan().all()
    assert torch.isfinite(ours[40:]).all()


@pytest.mark.parametrize("before", [0, 256])
@pytest.mark.parametrize("behind", [0, 256])
@pytest.mark.parametrize("dtype", sorted(LIBRARY.formats, key=str))
def test_edge_values_of_weights(dtype: torch.dtype, before: int, behind: int) -> None:
    """A key whose score is d below the largest weighs 2^-d of that, and nothing where float32 ends, in whole blocks of
    keys too, before it or behind it."""
    below = torch.tensor([0, 0.25, 1, 7.75, 60, 100, 120, 126, 126.5, 127, 149, 150, 200, 256, 1e4, 1e30, float("inf")])
    count, head = len(below), 32
    first, last = before, before + count
    query, key, value = torch.zeros(3, 1, last + behind, head)
    query[..., 0] = 1
    key[..., 0] = -150
    key[:, first:last, 0] = -below.nan_to_num(posinf=torch.finfo(torch.float32).max)
    value[:] = 1
    value[:, first:last] = torch.eye(count, head)
    states = (states.to(dtype) for states in (query, key, value))
    ours = NativeAttention(LIBRARY)(*states, batch_of([(last + behind, 0)]), AttentionTerms(scale=math.log(2)))
    powers = torch.exp2(-below.double())
    powers[below >= 126] = 0
    expected = powers / powers.sum()
    assert torch.allclose(ours[:, 0, :count].double(), expected, rtol={torch.float32: 3e-5}.get(dtype, 2e-2), atol=0)
    assert not ours[:, 0, count:].any()


def test_it_serves_where_it_can() -> None:
    """Heads of 16 numbers and their multiples, in the formats of this processor."""
    for head, kind in ((32, NativeAttention), (24, EqualRuns)):
        chosen = choice.choose(CPU, torch.float32, head, softcap=False, bias=False)
        assert isinstance(chosen, kind)
    halves = choice.choose(CPU, torch.float16, 32, softcap=False, bias=False)
    assert isinstance(halves, EqualRuns)


def test_a_kernel_that_errs_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate compares; then PyTorch's own attention serves, and the log says so. A class' own layers call it."""
    honest = native_attention.attention
    monkeypatch.delitem(FAMILIES, "bert")
    monkeypatch.setattr(native_attention, "attention", lambda *arguments: honest(*arguments) + 1e-2)
    model = load(random_model("tiny-bert"), Placement.choose("cpu", "float32"))
    assert model.encoder.description == "equal-runs"
    assert any("native" in line and "does not run by it as by its own" in line for line in model.findings)
    assert not any("layers run in" in line for line in model.findings)


HELD = """
import sys
import pytest
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import INSTRUCTION_SETS
name, *arguments = sys.argv[1:]
library.supported = lambda: tuple(instructions for instructions in INSTRUCTION_SETS if instructions.name == name)
assert library.load().instructions == name, library.load()
raise SystemExit(pytest.main(arguments))
"""
"""Runs tests with the library of one set of instructions."""


@pytest.mark.parametrize("instructions", [held.name for held in supported()[1:]])
def test_lesser_instructions_give_the_same(instructions: str) -> None:
    """This processor held to fewer instructions, in a process of its own: the tests that compare with the twin."""
    (held,) = (candidate for candidate in INSTRUCTION_SETS if candidate.name == instructions)
    build.build(held, build.compiler())
    limits = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
    environment = os.environ | limits.get(instructions, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"})
    names = ("attention", "layers", "model", "rows")
    files = ["test_int8.py", "test_maxsim.py", *(f"test_native_{name}.py" for name in names)]
    paths = [str(Path(__file__).with_name(name)) for name in files]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=few", *paths]
    tests = "equals_one_by_one or neighbours or past or overflow or none or equal_pytorchs or equals_pytorch or twin"
    tests += " or hide or any_size or edge_values or one_kind"
    result = subprocess.run(
        [sys.executable, "-c", HELD, instructions, *options, "-k", f"({tests}) and not lesser"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed
    assert int(passed[1]) >= 7


def test_a_library_of_other_sources_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its name tells sources, instructions and PyTorch; a stranger's is left alone, and the reason says what to do."""
    monkeypatch.setattr(library, "BUILT", tmp_path)
    assert library._loaded.__wrapped__().missing == f"none are built; {library.COMMAND} builds them"
    (tmp_path / "avx2-000000000000-torch1.0.so").touch()
    assert "for another processor, PyTorch or source" in library._loaded.__wrapped__().missing
    library.path_of(supported()[0]).write_bytes(b"not a library")
    assert "cannot be loaded" in library._loaded.__wrapped__().missing


def test_building_without_a_compiler_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "BUILT", tmp_path)
    monkeypatch.setattr(build, "BUILT", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.main([]) == 1
    assert "there is no compiler no-such-compiler" in capsys.readouterr().err
    monkeypatch.setenv("CXX", "false")
    assert build.main([]) == 1
    assert "false failed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
