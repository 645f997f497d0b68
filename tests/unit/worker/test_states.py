"""Layers that keep a state from token to token run packed: as transformers' own functions and classes run each text."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.bamba import modeling_bamba
from transformers.models.lfm3 import modeling_lfm3
from transformers.models.qwen3_next import modeling_qwen3_next

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.kernels.attention import states
from gpu_worker.kernels.attention.interface import CHUNK, AttentionCall, OneByOne
from gpu_worker.model.encoder.encoder import dense_run
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece, SequenceCache
from shared.jobs import Job, RaggedTokens
from support.architectures import MIXED, assert_near, sentences, theirs, write
from support.in_pieces import cut_texts, run_in_steps
from support.tiny import CPU, DENSE, dense_rows, random_ids, raw, run

DEVICE = torch.device("cpu")
LENGTHS = [
    [1],
    [CHUNK],
    [CHUNK, CHUNK, 1],
    [CHUNK - 1, 1, 3, CHUNK + 1],
    [1, 2, 3, 5, 7, 40, 150, 3 * CHUNK + 5],
    [3 * CHUNK + 5, 1, 1, 2 * CHUNK, 9],
]
"""Of texts of a batch: they begin and end at the bounds of chunks and within, and go on through up to four."""
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""Sums are made in another order, and transformers' decays of float32 are the less exact ones."""
FAMILIES = ("bamba", "falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "lfm3", "mamba2", "nemotron_h")
FAMILIES += ("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2")


def call_of(lengths: Sequence[int]) -> AttentionCall:
    """What layers are given for a batch of texts of these lengths."""
    texts = [np.zeros(length, dtype=np.int32) for length in lengths]
    return AttentionCall(attention=OneByOne(), batch=RaggedBatch.pack(texts, DEVICE))


def one_by_one(lengths: Sequence[int], original: Callable[..., Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Runs transformers' function for each text alone; `rows` [1, T, ...] are its arguments for all."""
    parts = zip(*(states.split(list(lengths), dim=1) for states in rows), strict=True)
    return torch.cat([original(*part) for part in parts], dim=1)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    ("original", "width", "options"),
    [
        (modeling_qwen3_next.causal_conv1d_fn, 4, {"activation": "silu"}),
        (modeling_lfm3.causal_conv1d_fn, states.REACH + 1, {}),
    ],
)
def test_a_convolution_stays_inside_its_text(
    lengths: list[int], original: Callable[..., Tensor], width: int, options: dict[str, Any]
) -> None:
    rows, weight, bias = draw(1, sum(lengths), 10), draw(10, width), draw(10)

    def alone(part: Tensor) -> Tensor:
        return original(part.transpose(1, 2), weight, bias, **options).transpose(1, 2)

    packed = states.convolve(original)(rows.transpose(1, 2), weight, bias, ragged=call_of(lengths), **options)
    torch.testing.assert_close(packed.transpose(1, 2), one_by_one(lengths, alone, [rows]))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_delta_rule_begins_anew_in_each_text(lengths: list[int], grouped: bool) -> None:
    total, heads = sum(lengths), 6
    query, key = (draw(1, total, 2 if grouped else heads, 8) for _ in range(2))
    value, decay, beta = draw(1, total, heads, 5), -torch.rand(1, total, heads), torch.rand(1, total, heads)
    original = modeling_qwen3_next.torch_chunk_gated_delta_rule

    def alone(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return original(q, k, v, g=g, beta=b, use_qk_l2norm_in_kernel=True)[0]

    ours = states.delta_rule(original)
    packed, _ = ours(
        query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True, ragged=call_of(lengths), use_cache=False
    )
    torch.testing.assert_close(packed, one_by_one(lengths, alone, [query, key, value, decay, beta]), **CLOSE)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_state_space_begins_anew_in_each_text(lengths: list[int], groups: int) -> None:
    total, heads = sum(lengths), 4
    x, dt, read, written = draw(1, total, heads, 8), draw(1, total, heads), *(draw(1, total, groups, 6) for _ in "BC")
    rates, direct, bias = -torch.rand(heads) * 4, draw(heads), draw(heads)
    original = modeling_bamba.mamba2_chunk_scan
    options = {"chunk_size": 32, "D": direct, "dt_bias": bias, "dt_softplus": True, "dt_limit": (0.05, 3.0)}

    def alone(x: Tensor, dt: Tensor, written: Tensor, read: Tensor) -> Tensor:
        return original(x, dt, rates, written, read, **options)

    packed = states.state_space(original)(x, dt, rates, written, read, **options, ragged=call_of(lengths))
    torch.testing.assert_close(packed, one_by_one(lengths, alone, [x, dt, written, read]), **CLOSE)


@pytest.mark.parametrize("name", ["query", "key", "value", "decay", "beta"])
def test_numbers_that_are_not_finite_stay_in_their_text(name: str) -> None:
    """Texts before and behind it are computed as without it; of its own text at least that token is NaN."""
    lengths, broken = [30, 70, 50], 40
    total, call = sum(lengths), call_of(lengths)
    inputs = {
        "query": draw(total, 2, 8),
        "key": F.normalize(draw(total, 2, 8), dim=-1),
        "value": draw(total, 2, 1, 5),
        "decay": -torch.rand(total, 2, 1),
        "beta": torch.rand(total, 2),
    }
    right = states.scan(**inputs, call=call)
    inputs[name] = inputs[name].clone()
    inputs[name][broken] = float("inf")
    rows = states.scan(**inputs, call=call)
    assert rows[broken].isnan().all()
    for others in (slice(0, 30), slice(100, None)):
        torch.testing.assert_close(rows[others], right[others])


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_runs_packed_as_its_own_class_runs_each_text(kind: str, tmp_path: Path) -> None:
    """In steps of three jobs, of mixed lengths."""
    write(tmp_path, kind)
    texts = sentences(MIXED[:21])
    expected, ids = theirs(tmp_path, texts)
    model = load(str(tmp_path), CPU)
    assert not model.encoder.unpacked_reason
    assert (model.whole_texts, model.unshared) == ("", states.KEEPS_STATES)
    jobs = [Job(id=start, work=raw(DENSE), tokens=RaggedTokens.of(ids[start::3])) for start in range(3)]
    for start, result in enumerate(run(ModelEngine(model), jobs, width=4)):
        assert_near(kind, dense_rows(result), expected[start::3])


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5_text", "bamba"])
@torch.inference_mode()
def test_tokens_that_none_attends_to_have_the_states_of_the_class(kind: str, tmp_path: Path) -> None:
    """As in an expanded query: such layers set them to zero."""
    write(tmp_path, kind)
    encoder = load(str(tmp_path), CPU).encoder
    assert not encoder.unpacked_reason
    lengths, tails = [12, 9, 70], [4, 0, 7]
    texts = [np.array(ids, dtype=np.int32) for ids in random_ids(lengths)]
    hidden = encoder(RaggedBatch.pack(texts, DEVICE, tails=tails)).split(lengths)
    class_of = write_back(encoder.model)
    for text, tail, rows in zip(texts, tails, hidden, strict=True):
        mask = torch.ones(1, len(text), dtype=torch.int64)
        mask[0, len(text) - tail :] = 0
        alone = dense_run(class_of, torch.from_numpy(text)[None].long(), mask)[0]
        torch.testing.assert_close(rows, alone, rtol=1e-4, atol=2e-5)


def write_back(model: Any) -> Any:
    """The model with the layers and the attention of its class again."""
    states.remove(model)
    model.set_attn_implementation("sdpa")
    return model


def test_what_the_gate_refuses_runs_by_equal_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the layers of its class: a state that went on from one text to the next would be seen."""
    monkeypatch.setitem(states.RAGGED, "mamba2_chunk_scan", leaking)
    write(tmp_path, "bamba")
    texts = sentences(MIXED[:8])
    expected, ids = theirs(tmp_path, texts)
    model = load(str(tmp_path), CPU)
    assert "it does not run among other texts as it runs alone" in model.encoder.unpacked_reason
    job = Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of(ids))
    assert_near("bamba", dense_rows(run(ModelEngine(model), [job])[0]), expected)


def leaking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def scanned(*terms: Any, ragged: AttentionCall | None = None, **options: Any) -> Tensor:
        return original(*terms, **options)

    return scanned


def in_pieces(lengths: Sequence[int], cuts: Sequence[int], size: int) -> Iterator[tuple[AttentionCall, list[slice]]]:
    """Steps that compute the texts of some lengths in pieces which end at `cuts` tokens, as far as a text has so many,
    beside a whole text of `size` tokens; and, by text, the tokens that a step has."""
    caches = [SequenceCache(length) for length in lengths]
    for start, stop in pairwise((0, *cuts, max(lengths))):
        tokens = [slice(min(start, length), min(stop, length)) for length in lengths]
        pieces = [
            Piece(np.zeros(length, dtype=np.int32), of.start, of.stop, cache)
            for length, of, cache in zip(lengths, tokens, caches, strict=True)
            if of.start < of.stop
        ]
        batch = RaggedBatch.pack([np.zeros(size, dtype=np.int32)], DEVICE, pieces=pieces)
        yield AttentionCall(attention=OneByOne(), batch=batch), tokens


CUTS = [(1,), (CHUNK,), (5, CHUNK + 3), (2, 3, 2 * CHUNK, 2 * CHUNK + 1)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", ["convolution", "delta rule", "state space"])
def test_a_text_goes_on_from_its_pieces(name: str, cuts: Sequence[int]) -> None:
    """As if it were whole, beside other texts that are whole or in pieces."""
    lengths, heads = [3 * CHUNK + 5, CHUNK + 4, 90], 4
    total, weight, rates = sum(lengths), draw(10, 4), -torch.rand(heads)

    def convolve(rows: Tensor, **options: Any) -> Tensor:
        ours = states.convolve(modeling_qwen3_next.causal_conv1d_fn)
        return ours(rows.transpose(1, 2), weight, None, **options).transpose(1, 2)

    def ruled(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, **options: Any) -> Tensor:
        ours = states.delta_rule(modeling_qwen3_next.torch_chunk_gated_delta_rule)
        return ours(query, key, value, g=-decay.abs(), beta=beta.sigmoid(), use_qk_l2norm_in_kernel=True, **options)[0]

    def scanned(x: Tensor, dt: Tensor, written: Tensor, read: Tensor, **options: Any) -> Tensor:
        ours = states.state_space(modeling_bamba.mamba2_chunk_scan)
        return ours(x, dt, rates, written, read, dt_softplus=True, **options)

    ways: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
        "convolution": (convolve, [draw(1, total, 10)]),
        "delta rule": (ruled, [draw(1, total, heads, 8) for _ in range(3)] + [draw(1, total, heads) for _ in range(2)]),
        "state space": (
            scanned,
            [draw(1, total, heads, 8), draw(1, total, heads), *(draw(1, total, 2, 6) for _ in "BC")],
        ),
    }
    way, rows = ways[name]
    whole = [draw(1, 70, *states.shape[2:]) for states in rows]
    expected = way(*rows, ragged=call_of(lengths)).split(lengths, dim=1)
    other = way(*whole, ragged=call_of([70]))
    found: list[list[Tensor]] = [[] for _ in lengths]
    for call, tokens in in_pieces(lengths, cuts, 70):
        texts = [[text[:, of] for text, of in zip(all_.split(lengths, dim=1), tokens, strict=True)] for all_ in rows]
        step = way(*(torch.cat([first, *parts], dim=1) for first, parts in zip(whole, texts, strict=True)), ragged=call)
        first, *parts = step.split([70, *(of.stop - of.start for of in tokens)], dim=1)
        torch.testing.assert_close(first, other, **CLOSE)
        for text, part in zip(found, parts, strict=True):
            text.append(part)
    for text, right in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.cat(text, dim=1), right, **CLOSE)


def test_a_piece_may_be_computed_again() -> None:
    """As long as its step may be under way: with the step before it or behind it, and cut in another place."""
    cache = SequenceCache(10)
    for start, stop in ((0, 2), (2, 4), (4, 6), (6, 8), (4, 5), (5, 8)):
        if start:
            assert cache.state(0, start) == torch.tensor(float(start))
        cache.keep_state(0, start, stop, torch.tensor(float(stop)))
    assert cache.state_bytes == 4
    with pytest.raises(KeyError):
        cache.state(0, 2)


def test_a_text_has_room_for_its_states() -> None:
    limits = PieceLimits(longest=4, cache_bytes=100, token_bytes=10, state_bytes=50)
    assert limits.cache_tokens == 5
    assert PieceLimits(longest=4, cache_bytes=40, token_bytes=10, state_bytes=50).cache_tokens == 0


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5_text", "bamba", "mamba2"])
def test_texts_in_pieces_have_the_vectors_of_whole_ones(kind: str, tmp_path: Path) -> None:
    """In any steps, of which two are under way at once; a cache has room for its states."""
    write(tmp_path, kind)
    texts = sentences(MIXED[:12])
    expected, ids = theirs(tmp_path, texts)
    model = load(str(tmp_path), CPU)
    engine = ModelEngine(model)
    jobs = [Job(id=start, work=raw(DENSE), tokens=RaggedTokens.of(ids[start::3])) for start in range(3)]
    assert max(map(len, ids)) > 12
    assert model.state_bytes > 0
    with cut_texts(engine, longest=4, token_bytes=model.token_bytes, state_bytes=model.state_bytes):
        assert max(engine.open(jobs[0]).room) > model.state_bytes
        for seed in range(2):
            for start, result in enumerate(run_in_steps(engine, jobs, seed)):
                assert_near(kind, dense_rows(result), expected[start::3])
