"""Repositories as they are on disk: what their files say, and what the worker makes of it."""

import json
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

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
from support.tiny import CPU, assert_as_the_reference, embed, listed, write_json


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


def test_a_plain_transformers_repository_gets_a_mean(encoder: Path) -> None:
    assert_as_the_reference(encoder, ["w1 w2 w3", "w9 w8"])


def test_prompts_limits_and_settings_are_read(tmp_path: Path) -> None:
    """Prompts with a default, include_prompt, max_seq_length, do_lower_case, Matryoshka dimensions."""
    folder = write_json(
        tmp_path,
        modules=listed("Transformer", "Pooling"),
        config={"matryoshka_dimensions": [64, 32]},
        sentence_bert_config={"max_seq_length": 77, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        **{
            "1_Pooling__config": {
                "pooling_mode_cls_token": True,
                "include_prompt": False,
                "word_embedding_dimension": 64,
            }
        },
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


def test_the_fingerprint_changes_with_everything_that_changes_a_row(encoder: Path, tmp_path: Path) -> None:
    """dtype, limit, and any file; not with the name or the place."""
    for file in encoder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    first = load(str(encoder), CPU)
    assert load(str(tmp_path), CPU, LoadOptions(names=("other", "another"))).fingerprint == first.fingerprint
    prints = {
        first.fingerprint,
        load(str(encoder), CPU, LoadOptions(max_tokens=100)).fingerprint,
        load(str(encoder), Placement.choose("cpu", "bfloat16")).fingerprint,
    }
    write_json(tmp_path, config_sentence_transformers={"prompts": {"query": "q: "}})
    prints.add(load(str(tmp_path), CPU).fingerprint)
    assert len(prints) == 4


def test_a_model_has_the_names_that_it_is_served_by(encoder: Path) -> None:
    """One a flag, or with commas between; the first is the card's id. The embedded default has its hub id too."""
    for flags in (["--served-name", "mine", "--served-name", "org/mine"], ["--served-name", "mine, org/mine"]):
        names = WorkerSettings.read(flags).served_name
        card = card_of(load(str(encoder), CPU, LoadOptions(names=names)))
        assert (card.id, card.aliases) == ("mine", ("org/mine",))
    unnamed = card_of(load(str(encoder), CPU, LoadOptions(names=WorkerSettings.read([]).served_name)))
    assert unnamed.names == (encoder.name,)
    assert source._names("minilm", encoder) == ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "minilm")


def test_what_need_not_come_from_the_hub() -> None:
    """Pickles beside safetensors and exports; a pickle that is alone in its folder is needed."""
    files = ["model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin", "config.json", "onnx/model.onnx"]
    assert hub.not_needed([Path(file) for file in files]) == ["onnx/*", "openvino/*", "pytorch_model.bin"]
