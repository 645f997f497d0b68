"""Layers that follow one another run in one call of the kernels, with the same bits as one by one. They run apart where
something happens between them."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.kernels.attention.pieces import PieceAttention
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune.joined_layers import JoinedLayers, join_layers
from gpu_worker.model.tune.module_calls import record_calls
from gpu_worker.model.tune.native_layers import NativeLayer
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.followers import Follower
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.sequence_cache import SequenceCache
from harness.random_models import miniature
from support.native import LIBRARY, needs_kernels
from support.random_models import random_model

pytestmark = needs_kernels
CPU = Placement.choose("cpu", "float32")
TOGETHER = "layers run in"


def layers_of(model: Model) -> list[NativeLayer]:
    return [module for module in model.encoder.model.modules() if isinstance(module, NativeLayer)]


def part(model: Model) -> None:
    """Makes the layers run one by one."""
    for layer in layers_of(model):
        layer.joined = None


def rows_of(model: Model) -> Tensor:
    """Hidden states of texts of 1 to 300 tokens, in one batch."""
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (1, 40, 300)]
    batch = RaggedBatch.pack(texts, torch.device("cpu"), model.encoder.uncounted, types=model.encoder.token_types)
    with torch.inference_mode():
        return model.encoder(batch)


def join(model: Model) -> list[int]:
    assert isinstance(model.encoder, PackedEncoder)
    batch = Probes.of(model.encoder.model.config, 64).batch(range(3), model.encoder)
    model.encoder.direct = ()
    chains = join_layers(model.encoder, record_calls(model.encoder.model, lambda: model.encoder(batch)), batch)
    return [len(chain) for chain in chains]


def groups(model: Model) -> list[int]:
    """How many layers run in each call."""
    joined = [layer.joined for layer in layers_of(model)]
    assert None not in joined
    return [joined.count(group) for group in dict.fromkeys(joined)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-nomic-bert", "tiny-qwen3", "tiny-mistral", "tiny-gte"])
def test_layers_of_one_kind_give_the_bits_that_they_give_one_by_one(name: str, dtype: Dtype) -> None:
    if getattr(torch, dtype) not in LIBRARY.formats:
        pytest.skip(f"the kernels have no {dtype} here")
    model = load(random_model(name), Placement.choose("cpu", dtype))
    assert groups(model) == [3]
    assert f"3 {TOGETHER} 1 call" in model.findings
    together = rows_of(model)
    part(model)
    assert torch.equal(rows_of(model), together)


def test_rounded_layers_run_together_too() -> None:
    if LIBRARY.missing:
        pytest.skip("the kernels have no int8 here")
    model = load(random_model("tiny-bert"), CPU, linear="int8")
    assert groups(model) == [3]
    together = rows_of(model)
    part(model)
    assert torch.equal(rows_of(model), together)


def in_pieces(model: Model, lengths: list[int], seed: int) -> list[Tensor]:
    """Hidden states of each text, whose pieces of random sizes come in steps of one or two beside a whole text."""
    encoder, chance = model.encoder, random.Random(seed)
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in lengths]
    caches, starts = [SequenceCache(length) for length in lengths], [0] * len(lengths)
    with torch.inference_mode():
        while open_texts := [number for number, text in enumerate(texts) if starts[number] < len(text)]:
            pieces = []
            for number in chance.sample(open_texts, min(chance.randint(1, 2), len(open_texts))):
                start = starts[number]
                starts[number] = min(start + chance.randint(1, 2 + lengths[number] // 3), lengths[number])
                pieces.append(Piece(texts[number], start, starts[number], caches[number]))
            pieces.sort(key=lambda piece: piece.start > 0)
            batch = RaggedBatch.pack([texts[0][:9]], encoder.device, encoder.uncounted, pieces=pieces)
            hidden = encoder(batch)
            for piece, rows in zip(pieces, batch.piece_rows(), strict=True):
                piece.cache.add_hidden(piece.start, hidden[rows])
                piece.cache.collect()
    return [cache.hidden for cache in caches]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "lengths"),
    [("tiny-qwen3", [40, 150, 300]), ("tiny-mistral", [45, 300, 30]), ("tiny-gemma2", [45, 300, 30])],
)
def test_pieces_run_through_layers_together(
    name: str, lengths: list[int], dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give the bits that they give layer by layer, and whole texts; also where windows hide most of a text."""
    if getattr(torch, dtype) not in LIBRARY.formats:
        pytest.skip(f"the kernels have no {dtype} here")
    model, seen = load(random_model(name), Placement.choose("cpu", dtype)), set[str]()
    attend, keep = PieceAttention.__call__, PieceAttention.keep_layers

    def attended(*arguments: Any) -> Tensor:
        seen.add("apart")
        return attend(*arguments)

    def kept(*arguments: Any) -> list[Tensor]:
        seen.add("together")
        return keep(*arguments)

    monkeypatch.setattr(PieceAttention, "__call__", attended)
    monkeypatch.setattr(PieceAttention, "keep_layers", kept)
    together = in_pieces(model, lengths, seed=1)
    assert seen == {"together"}
    batch = RaggedBatch.pack([np.arange(5, 5 + length, dtype=np.int32) for length in lengths], model.encoder.device)
    with torch.inference_mode():
        whole = model.encoder(batch)
    assert torch.equal(torch.cat(together), whole)
    part(model)
    seen.clear()
    assert all(map(torch.equal, in_pieces(model, lengths, seed=1), together))
    assert seen == {"apart"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "shared"), [("tiny-qwen3", 1), ("tiny-qwen3", 299), ("tiny-mistral", 40)])
def test_texts_that_begin_alike_run_through_layers_together(
    name: str, shared: int, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside whole texts and pieces, with the bits that they give layer by layer, and alone."""
    if getattr(torch, dtype) not in LIBRARY.formats:
        pytest.skip(f"the kernels have no {dtype} here")
    model = load(random_model(name), Placement.choose("cpu", dtype))
    encoder, texts = model.encoder, [np.arange(5, 5 + length, dtype=np.int32) for length in (9, 300)]
    alike = [np.concatenate([texts[1][:shared], np.arange(400, 400 + length, dtype=np.int32)]) for length in (1, 70)]
    followers = [Follower(sequence=text, shared=np.arange(9, 9 + shared)) for text in alike]

    def run() -> Tensor:
        cache, rows = SequenceCache(45), list[Tensor]()
        for start, stop in ((0, 20), (20, 45)):
            pieces = [Piece(np.arange(7, 52, dtype=np.int32), start, stop, cache)]
            rows.append(encoder(RaggedBatch.pack(texts, encoder.device, pieces=pieces, followers=followers)))
        return torch.cat(rows)

    def alone(text: npt.NDArray[np.int32], rows: slice) -> Tensor:
        return encoder(RaggedBatch.pack([text], encoder.device))[rows]

    with torch.inference_mode():
        with monkeypatch.context() as patch:
            patch.setattr(PieceAttention, "__call__", None)  # nothing attends layer by layer
            together = run()
        piece = alone(np.arange(7, 52, dtype=np.int32), slice(None))
        own = [alone(text, slice(shared, None)) for text in alike]
        whole = [alone(text, slice(None)) for text in texts]
        assert torch.equal(together, torch.cat([*whole, piece[:20], *own, *whole, piece[20:], *own]))
        part(model)
        assert torch.equal(run(), together)


def test_layers_that_attend_by_different_rules_run_apart() -> None:
    """ModernBERT's first layer sees the whole text, the others a window, and their angles differ."""
    model = load(random_model("tiny-modernbert"), CPU)
    assert groups(model) == [1, 2]
    together = rows_of(model)
    part(model)
    assert torch.equal(rows_of(model), together)


def test_a_layer_that_serves_several_times_stands_alone(tmp_path: Path) -> None:
    """ALBERT's layers share their weights: one layer runs again and again."""
    miniature.write(tmp_path, "albert")
    model = load(str(tmp_path), CPU)
    assert layers_of(model)
    assert all(layer.joined is None for layer in layers_of(model))


def test_layers_between_which_something_happens_run_apart() -> None:
    """Another tensor than the layer before gave, be it equal, or another keyword."""
    model = load(random_model("tiny-bert"), CPU)
    layers = layers_of(model)
    part(model)

    def copied(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Any, ...]:
        return (arguments[0].clone(), *arguments[1:])

    with layers[1].register_forward_pre_hook(copied):
        assert join(model) == groups(model) == [1, 2]

    def told_more(_: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {**keywords, "more": object()}

    part(model)
    with layers[2].register_forward_pre_hook(told_more, with_kwargs=True):
        assert join(model) == groups(model) == [2, 1]

    def changed(_: Any, arguments: tuple[Tensor, ...]) -> None:
        arguments[0].add_(1)  # the same tensor, which only the bits tell

    part(model)
    with layers[1].register_forward_pre_hook(changed):
        assert join(model) == []
    assert all(layer.joined is None for layer in layers)


def test_layers_that_give_other_bits_together_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = JoinedLayers.run

    def erring(self: JoinedLayers, layer: NativeLayer, states: Tensor, *arguments: Any) -> Tensor:
        found = honest(self, layer, states, *arguments)
        return torch.nextafter(found, found + 1) if found.shape[1] > 40 else found

    monkeypatch.setattr(JoinedLayers, "run", erring)
    model = load(random_model("tiny-bert"), CPU)
    assert all(layer.joined is None for layer in layers_of(model))
    assert not any(TOGETHER in line for line in model.findings)
