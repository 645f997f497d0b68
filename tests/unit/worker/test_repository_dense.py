"""Dense repositories that sentence-transformers writes: its vectors and ours are equal, without services."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Normalize, Pooling, Transformer
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer
from torch import nn

from gpu_worker.model.loading import Model, load
from gpu_worker.repository import reading as repository
from gpu_worker.repository import tokenizer
from support.breakages import whole_repository
from support.tiny import (
    CPU,
    assert_as_the_reference,
    embed,
    listed,
    rows,
    split_weights,
    write_encoder,
    write_json,
)

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3", "w7", "", "w5 " * 60, "w9 w8 w7 w6"]


def saved(folder: Path, encoder: Path, *modules: Any) -> SentenceTransformer:
    """An oracle with seeded layers, written to `folder`."""
    torch.manual_seed(1)
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.2)
    oracle = SentenceTransformer(modules=[Transformer(str(encoder)), *modules], device="cpu")
    oracle.save(str(folder), create_model_card=False)
    return oracle


def assert_equal(folder: Path, oracle: SentenceTransformer) -> Model:
    """The rows of the texts; what was loaded."""
    expected, model = oracle.encode(TEXTS), load(str(folder), CPU)
    assert np.abs(rows(model, TEXTS) - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())
    return model


CHAINS: dict[str, tuple[str | tuple[str, ...], list[Any]]] = {
    "tanh": ("mean", [Dense(64, 32)]),
    "identity": ("cls", [Dense(64, 96, activation_function=None)]),
    "without bias": ("mean", [Dense(64, 16, bias=False, activation_function=nn.Identity())]),
    "gelu": ("mean", [Dense(64, 32, activation_function=nn.GELU())]),
    "residual": ("mean", [Dense(64, 64, use_residual=True)]),
    "projected residual": ("mean", [Dense(64, 24, use_residual=True)]),
    "several": ("mean", [Dense(64, 128, bias=False), Dense(128, 32), Normalize()]),
    "over several poolings": (("cls", "mean"), [Dense(128, 32), Normalize()]),
    "norm": ("mean", [LayerNorm(64)]),
    "norm after dense": ("mean", [Dense(64, 32), LayerNorm(32), Normalize()]),
    "unit in the middle": ("mean", [Normalize(), Dense(64, 32, activation_function=nn.Identity())]),
    "unit twice": ("mean", [Normalize(), Dense(64, 32), Normalize()]),
    "dropout": ("mean", [Dropout(0.5), Normalize()]),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_layers_after_pooling(encoder: Path, tmp_path: Path, chain: str) -> None:
    """Dense, LayerNorm and Normalize in any order, at the widths that they say."""
    pooling, layers = CHAINS[chain]
    oracle = saved(tmp_path, encoder, Pooling(64, pooling), *layers)
    dense = assert_equal(tmp_path, oracle).heads.dense
    assert dense is not None
    assert dense.width == oracle.get_embedding_dimension()


def test_layers_as_pickles(encoder: Path, tmp_path: Path) -> None:
    """pytorch_model.bin in a module's folder, as versions before 3 wrote it."""
    oracle = saved(tmp_path, encoder, Pooling(64, "mean"), Dense(64, 32))
    weights = next(tmp_path.glob("2_Dense/model.safetensors"))
    torch.save(oracle[2].state_dict(), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    assert_equal(tmp_path, oracle)


LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@pytest.mark.parametrize("chosen", [[key] for key in LEGACY] + [list(LEGACY), []])
def test_the_legacy_form_of_pooling(tmp_path: Path, chosen: list[str]) -> None:
    """Booleans and word_embedding_dimension; the mean where none is true; as the oracle reads them."""
    config = {"word_embedding_dimension": 64} | {key: key in chosen for key in LEGACY}
    write_json(tmp_path, modules=listed("Transformer", "Pooling"), config={}, **{"1_Pooling__config": config})
    modes = Pooling.load(str(tmp_path), subfolder="1_Pooling").pooling_mode
    recipe = repository.read(tmp_path).dense
    assert recipe is not None
    assert recipe.poolings == ((modes,) if isinstance(modes, str) else modes)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("part", ["", "2_Dense"], ids=["encoder", "layer"])
def test_weights_in_several_files(tmp_path: Path, encoder: Path, suffix: str, part: str) -> None:
    """Shards with an index give the rows of the whole, of an encoder and of a module's folder."""
    whole_repository(encoder, tmp_path / "model")
    expected = embed(tmp_path / "model", TEXTS)
    split_weights(tmp_path / "model" / part, suffix)
    assert np.array_equal(embed(tmp_path / "model", TEXTS), expected)


def test_weights_as_a_pickle(tmp_path: Path, encoder: Path) -> None:
    model = write_encoder(tmp_path, "tiny-bert")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert np.abs(embed(tmp_path, TEXTS) - embed(encoder, TEXTS)).max() < 2e-5


def test_a_tokenizer_that_has_only_a_vocabulary(tmp_path: Path) -> None:
    """vocab.txt of BERT becomes a tokenizer.json, with its own casing."""
    write_encoder(tmp_path, "tiny-bert")
    for file in tmp_path.glob("*token*"):
        file.unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "copper", "river", "##s", "."]
    words += [f"word{number}" for number in range(400)]  # as a vocabulary for these embeddings would
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    assert_as_the_reference(tmp_path, ["Copper rivers.", "river"])
    assert load(str(tmp_path), CPU).tokenizer.special_tokens["mask"] == 4


def test_a_sentencepiece_model_is_converted(tmp_path: Path) -> None:
    """sentencepiece.bpe.model of XLM-RoBERTa becomes a tokenizer.json that cuts words as sentencepiece does."""
    write_encoder(tmp_path, "tiny-xlm-roberta")
    for file in tmp_path.glob("*token*"):
        file.unlink()
    names = ["river", "harbour", "lantern", "quiet", "engine", "winter", "orchard", "copper", "signal", "meadow"]
    sentences = (" ".join(names[(start + step) % 10] for step in (0, 3, 5)) for start in range(500))
    prefix = tmp_path / "sentencepiece.bpe"
    SentencePieceTrainer.train(sentence_iterator=sentences, model_prefix=str(prefix), vocab_size=34, minloglevel=2)
    made = tokenizer.export(tokenizer.read(tmp_path, trust_remote_code=False), lowercase=False)
    pieces = SentencePieceProcessor(model_file=f"{prefix}.model").encode("river harbour lant", out_type=str)
    assert Tokenizer.from_buffer(made.content).encode("river harbour lant").tokens == ["<s>", *pieces, "</s>"]
    assert made.special_tokens["pad"] == 1
