"""Static embeddings: read as sentence-transformers and model2vec write them, and equal to them."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from shared.errors import ModelRefused
from shared.jobs import Job, RaggedTokens
from support import asymmetric
from support.asymmetric import ROWS, TEXTS, dense_model, numbers, static
from support.breakages import Poison
from support.native import LIBRARY
from support.references import near
from support.tiny import (
    CPU,
    DENSE,
    dense_rows,
    encode,
    listed,
    random_ids,
    reader,
    rows,
    run,
    write_json,
)


@pytest.mark.parametrize(
    "after",
    [list, lambda: [Normalize()], lambda: [Dense(64, 48, activation_function=torch.nn.Tanh()), Normalize()]],
    ids=["alone", "unit rows", "a layer"],
)
def test_static_embedding(tmp_path: Path, after: Callable[[], list[Any]]) -> None:
    """Means of rows, and what modules behind them make of these."""
    torch.manual_seed(0)
    oracle = dense_model(tmp_path, static(), *after())
    model = load(str(tmp_path / "saved"), CPU)
    near(rows(model, TEXTS), oracle.encode(TEXTS), 1e-5)
    assert (model.family, model.vocabulary_size, model.encoder.description) == ("static", ROWS, "static")


@pytest.mark.parametrize("direction", ["left", "right"])
def test_a_text_is_cut_where_its_tokenizer_cuts_it(tmp_path: Path, direction: str) -> None:
    """sentence-transformers leaves the truncation of tokenizer.json on."""
    bag = StaticEmbedding(asymmetric.cut_tokenizer(7, direction), embedding_weights=numbers(ROWS, 8))
    dense_model(tmp_path, bag)
    model = load(str(tmp_path / "saved"), CPU)
    assert (model.max_tokens, model.tokenizer.truncation_side.name.lower()) == (7, direction)


def model2vec(folder: Path, normalize: bool = True, **tensors: torch.Tensor) -> Path:
    """A folder as model2vec publishes one, without a modules.json."""
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    reader().backend_tokenizer.save(str(folder / "tokenizer.json"))
    return write_json(folder, config={"model_type": "model2vec", "hidden_dim": 8, "normalize": normalize})


def test_a_direction_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = model2vec(tmp_path / "m2v", embeddings=numbers(ROWS, 8))
    described = json.loads((folder / "tokenizer.json").read_text())
    write_json(folder, tokenizer=described | {"truncation": {"max_length": 7, "direction": "up"}})
    with pytest.raises(ModelRefused, match=r"tokenizer\.json: truncation: direction UP is not one of RIGHT, LEFT"):
        load(str(folder), CPU)


@pytest.mark.parametrize(
    ("normalize", "more", "dtype"),
    [
        (True, (), torch.float32),
        (False, ("mapping",), torch.float16),
        (True, ("weights",), torch.float16),
        (False, ("mapping", "weights"), torch.float32),
    ],
)
def test_model2vec(tmp_path: Path, normalize: bool, more: tuple[str, ...], dtype: torch.dtype) -> None:
    """With fewer rows than tokens, and a factor for each token, as its newer versions write them."""
    count = 300 if "mapping" in more else ROWS
    tensors = {"embeddings": numbers(count, 8).to(dtype)}
    if "mapping" in more:
        tensors["mapping"] = torch.randint(0, count, (ROWS,), generator=torch.Generator().manual_seed(1))
    if "weights" in more:
        tensors["weights"] = numbers(ROWS, seed=2).double()
    folder = model2vec(tmp_path / "m2v", normalize, **tensors)
    bag = StaticEmbedding.load(str(folder))
    bag.embedding.float()  # we compute in float32 whatever the file has
    oracle = SentenceTransformer(modules=[bag, *([Normalize()] * normalize)], device="cpu")
    near(rows(load(str(folder), CPU), TEXTS), oracle.encode(TEXTS), 1e-3 if dtype == torch.float16 else 1e-5)
    kind = "sentence_transformers.models.StaticEmbedding"
    write_json(folder, modules=[{"idx": 0, "name": "0", "path": ".", "type": kind}])
    near(rows(load(str(folder), CPU), TEXTS), SentenceTransformer(modules=[bag]).encode(TEXTS), 1e-5)


def test_a_text_has_one_row_whatever_stands_beside_it(tmp_path: Path) -> None:
    """To the last bit, without the kernels within 1e-6."""
    torch.manual_seed(0)
    dense_model(tmp_path, static(), Dense(64, 48))
    model = load(str(tmp_path / "saved"), CPU)
    (text,), alone = random_ids([23], seed=5), None
    for count in (0, 1, 63):
        others = random_ids([1 + number * 7 % 90 for number in range(count)])
        texts = [*others[::2], text, *others[1::2]]
        jobs = [Job(id=number, work=encode(DENSE), tokens=RaggedTokens.of([ids])) for number, ids in enumerate(texts)]
        row = dense_rows(run(ModelEngine(model), jobs)[len(others[::2])])
        alone = row if alone is None else alone
        assert np.abs(row - alone).max() <= (1e-6 if LIBRARY.missing else 0)
    assert bool(model.other_bits) == bool(LIBRARY.missing)


def test_the_table_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """One number of it changes the fingerprint."""
    dense_model(tmp_path, static())
    folder, file = tmp_path / "saved", tmp_path / "saved" / "model.safetensors"
    before = load(str(folder), CPU).fingerprint
    tensors = load_file(file)
    tensors["embedding.weight"][3, 3] += 1
    save_file(tensors, file)
    assert load(str(folder), CPU).fingerprint != before


BAD: list[tuple[dict[str, torch.Tensor], str]] = [
    ({"other": numbers(ROWS, 8)}, "neither embedding.weight nor embeddings"),
    ({"embedding.weight": numbers(ROWS)}, "has the shape"),
    ({"embedding.weight": torch.ones(ROWS, 8, dtype=torch.int8)}, "int8"),
    ({"embedding.weight": torch.full((ROWS, 8), torch.nan)}, "not finite"),
    ({"embeddings": numbers(9, 8), "mapping": torch.full((ROWS,), 9)}, "outside of embeddings"),
    ({"embeddings": numbers(9, 8), "mapping": numbers(ROWS)}, "whole numbers"),
    ({"embeddings": numbers(ROWS, 8), "weights": numbers(5)}, "weights has 5 numbers"),
    ({"embedding.weight": numbers(90_000, 1)}, "1000 tokens for the model's 90000 embeddings"),
]


@pytest.mark.parametrize(("tensors", "why"), BAD, ids=[why for *_, why in BAD])
def test_a_bad_table_is_refused_by_name(tmp_path: Path, tensors: dict[str, torch.Tensor], why: str) -> None:
    """The line says which file, and what is wrong with it."""
    dense_model(tmp_path, static(8))
    file = tmp_path / "saved" / "model.safetensors"
    save_file(tensors, file)
    with pytest.raises(ModelRefused, match=why) as refused:
        load(str(tmp_path / "saved"), CPU)
    if "tokens" not in why:
        assert str(file) in str(refused.value)


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    """A table in a pickle is read as plain tensors; code in it is refused and never run."""
    dense_model(tmp_path, static(8))
    folder, mark = tmp_path / "saved", tmp_path / "mark"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert load(str(folder), CPU).vocabulary_size == ROWS
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embedding.weight": Poison(mark)}))
    with pytest.raises(ModelRefused, match=r"pytorch_model\.bin cannot be read"):
        load(str(folder), CPU)
    assert not mark.exists()


def test_modules_that_are_not_served_are_named(tmp_path: Path) -> None:
    """A pooling of tokens of a model that has none."""
    pooling = {"embedding_dimension": 8, "pooling_mode": "mean"}
    write_json(tmp_path, modules=listed("StaticEmbedding", "Pooling"), tokenizer={}, **{"1_Pooling__config": pooling})
    with pytest.raises(ModelRefused, match="Pooling reads token_embeddings"):
        load(str(tmp_path), CPU)
