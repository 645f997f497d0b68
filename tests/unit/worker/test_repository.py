"""Repositories as they are on disk: what their files say, what the worker makes of it, and that dense vectors are those
of sentence-transformers, without services."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Normalize, Pooling, Transformer
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.model import source
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository import hub, tokenizer
from gpu_worker.repository import reading as repository
from gpu_worker.repository.recipe import DenseRecipe, MultiVectorRecipe, Recipe
from gpu_worker.settings import WorkerSettings
from harness.random_models import synthetic
from support.references import mini_lm_path, words
from support.tiny import CPU, assert_as_the_reference, embed, listed, rows, split_weights, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3", "w7", "", "w5 " * 60, "w9 w8 w7 w6"]


def test_the_old_form_and_the_new_form_say_the_same(tmp_path: Path) -> None:
    """MiniLM as it was shipped in 2021, and saved again by version 6."""
    old = repository.read(Path(mini_lm_path()))
    oracle = SentenceTransformer(mini_lm_path(), device="cpu")
    oracle.save(str(tmp_path), create_model_card=False)
    new = repository.read(tmp_path)
    assert old.dense == new.dense == DenseRecipe(poolings=("mean",), normalize=True)
    assert old.max_tokens == new.max_tokens == 256
    text = [words(30, seed=1)]
    assert np.abs(embed(tmp_path, text) - oracle.encode(text)).max() < 1e-6


def test_prompts_limits_and_settings_are_read(tmp_path: Path) -> None:
    """Prompts with a default, include_prompt, max_seq_length, do_lower_case, Matryoshka dimensions."""
    pooling = {"pooling_mode_cls_token": True, "include_prompt": False, "word_embedding_dimension": 64}
    folder = write_json(
        tmp_path,
        modules=listed("Transformer", "Pooling"),
        config={"matryoshka_dimensions": [64, 32]},
        sentence_bert_config={"max_seq_length": 77, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        **{"1_Pooling__config": pooling},
    )
    assert repository.read(folder) == Recipe(
        dense=DenseRecipe(poolings=("cls",), include_prompt=False, allowed_dimensions=(32, 64)),
        multi_vector=MultiVectorRecipe(),
        max_tokens=77,
        lowercase=True,
        prompts={"query": "q: "},
        default_prompt_name="query",
    )


def test_lowercase_is_put_before_the_tokenizer() -> None:
    """sentence-transformers lowers the text itself."""
    made = json.loads(synthetic.tokenizer(1000).content)
    lowered = tokenizer.finish(made | {"normalizer": None}, {}, lowercase=True)
    assert Tokenizer.from_buffer(lowered.content).encode("W1 W2").tokens == ["[CLS]", "w1", "w2", "[SEP]"]


def test_the_fingerprint_changes_with_number_format_and_limit(encoder: Path, folder: Path) -> None:
    """Not with the name or the place; `test_fingerprint.py` tries files."""
    first = load(str(encoder), CPU).fingerprint
    assert load(str(folder), CPU, LoadOptions(names=("other", "another"))).fingerprint == first
    shorter = load(str(encoder), CPU, LoadOptions(max_tokens=100)).fingerprint
    assert len({first, shorter, load(str(encoder), Placement.choose("cpu", "bfloat16")).fingerprint}) == 3


def test_a_model_has_the_names_that_it_is_served_by(encoder: Path) -> None:
    """One a flag, or with commas between; the first is the card's id. The embedded default has its hub id too."""
    names = WorkerSettings.read(["--served-name", "mine", "--served-name", "org/mine"]).served_name
    assert WorkerSettings.read(["--served-name", "mine, org/mine"]).served_name == names
    card = card_of(load(str(encoder), CPU, LoadOptions(names=names)))
    assert (card.id, card.aliases) == ("mine", ("org/mine",))
    assert source._names(str(encoder), encoder) == (encoder.name,)
    assert source._names("minilm", encoder) == ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "minilm")


def test_what_need_not_come_from_the_hub() -> None:
    """Pickles beside safetensors and exports; a pickle that is alone in its folder is needed."""
    files = ["model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin", "config.json", "onnx/model.onnx"]
    assert hub.not_needed([Path(file) for file in files]) == ["onnx/*", "openvino/*", "pytorch_model.bin"]


CHAINS: dict[str, tuple[str | tuple[str, ...], list[Any]]] = {
    "tanh": ("mean", [Dense(64, 32)]),
    "no activation and no bias": ("cls", [Dense(64, 96, bias=False, activation_function=None)]),
    "gelu and residual": ("mean", [Dense(64, 64, activation_function=nn.GELU(), use_residual=True)]),
    "projected residual": ("mean", [Dense(64, 24, use_residual=True)]),
    "several over several poolings": (("cls", "mean"), [Dense(128, 64, bias=False), Dense(64, 32), Normalize()]),
    "norm": ("mean", [LayerNorm(64)]),
    "norm after dense": ("mean", [Dense(64, 32), LayerNorm(32), Normalize()]),
    "unit twice": ("mean", [Normalize(), Dense(64, 32, activation_function=nn.Identity()), Normalize()]),
    "dropout, unit in the middle": ("mean", [Dropout(0.5), Normalize(), Dense(64, 32)]),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_layers_after_pooling(encoder: Path, tmp_path: Path, chain: str) -> None:
    """Dense, LayerNorm and Normalize in any order, at the widths that they say."""
    pooling, layers = CHAINS[chain]
    torch.manual_seed(1)
    for parameter in nn.ModuleList(layers).parameters():
        nn.init.normal_(parameter, std=0.2)
    modules = [Transformer(str(encoder)), Pooling(64, pooling), *layers]
    oracle = SentenceTransformer(modules=modules, device="cpu")
    oracle.save(str(tmp_path), create_model_card=False)
    expected, model = oracle.encode(TEXTS), load(str(tmp_path), CPU)
    assert np.abs(rows(model, TEXTS) - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())
    assert model.heads.dense is not None
    assert model.heads.dense.width == oracle.get_embedding_dimension()


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


@pytest.mark.parametrize("form", [".safetensors", ".bin", "pickle"])
def test_weights_in_other_files(whole: Path, form: str) -> None:
    """Shards with an index, or a pickle as older versions wrote it, give the rows of the whole: of an encoder and of a
    layer in a folder of its own."""
    expected = embed(whole, TEXTS)
    for folder in (whole, whole / "2_Dense"):
        if form == "pickle":
            file = folder / "model.safetensors"
            torch.save(load_file(file), folder / "pytorch_model.bin")
            file.unlink()
        else:
            split_weights(folder, form)
    assert np.array_equal(embed(whole, TEXTS), expected)


def test_a_tokenizer_that_has_only_a_vocabulary(tmp_path: Path) -> None:
    """vocab.txt of BERT becomes a tokenizer.json, with its own casing."""
    write_encoder(tmp_path, "tiny-bert")
    for file in tmp_path.glob("*token*"):
        file.unlink()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "copper", "river", "##s", "."]
    vocabulary += [f"word{number}" for number in range(400)]  # as a vocabulary for these embeddings would
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
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
