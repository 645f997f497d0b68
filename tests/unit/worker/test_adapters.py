"""An adapter in a model's folder is merged at load: the rows are those of peft, or the folder is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.repository.files import pickles_beside_safetensors
from harness.random_models import miniature
from shared.jobs import Classify
from support.adapted import (
    beside_weights,
    change_config,
    change_tensors,
    peft_rows,
    write_adapter,
    write_sentence_model,
)
from support.breakages import refusal
from support.tiny import CPU, ask, embed, listed, reader, scores, write_encoder, write_json, write_pooled

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4", "w11"]
MERGE = (
    ": only LoRA and rsLoRA of linear layers are served; merge the adapter with peft's merge_and_unload and serve the "
    "merged folder"
)
FORMS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "a pattern": {"target_modules": r".*\.layer\.[01]\..*\.(query|value)"},
    "all linear layers": {"target_modules": "all-linear"},
    "other ranks and factors": {
        "target_modules": ["query", "value"],
        "rank_pattern": {"value": 5, r"layer\.0\..*query": 1},
        "alpha_pattern": {"layer.1.attention.self.query": 9},
    },
    "one layer": {"layers_to_transform": [1]},
    "one layer by its pattern": {"layers_to_transform": 0, "layers_pattern": "layer"},
    "others excluded": {"target_modules": ["dense", "query"], "exclude_modules": ["pooler.dense", "output.dense"]},
    "trained biases and one of its own": {"bias": "lora_only", "lora_bias": True},
}


pytestmark = pytest.mark.filterwarnings("ignore:Adapter 'default'")  # peft takes biases for broken matrices


@pytest.mark.parametrize("form", FORMS)
def test_its_rows_are_those_of_peft(encoder: Path, tmp_path: Path, form: str) -> None:
    folder = write_sentence_model(tmp_path / "adapter", encoder, **FORMS[form])
    served = embed(folder, TEXTS)
    assert np.abs(served - peft_rows(folder, encoder, TEXTS)).max() < 1e-5
    assert np.abs(served - embed(encoder, TEXTS)).max() > 1e-2


def test_an_adapter_beside_weights_is_merged_into_these(encoder: Path, tmp_path: Path) -> None:
    folder = beside_weights(tmp_path / "both", encoder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    change_config(folder, base_model_name_or_path="someone/elsewhere")
    assert np.abs(embed(folder, TEXTS) - expected).max() < 1e-5


def test_an_adapter_alone_is_read_without_modules(encoder: Path, tmp_path: Path) -> None:
    """It pools as sentence-transformers does, whatever its base's modules are, and the card says so."""
    base = tmp_path / "base"
    shutil.copytree(encoder, base)
    write_pooled(base, "cls")
    folder = write_adapter(tmp_path / "adapter", base)
    model = load(str(folder), CPU)  # with the base's tokenizer
    assert model.names == ("adapter",)
    assert "its pooling does not follow" in model.notice
    assert any(f"LoRA of rank 2 on 3 modules, merged into {base}" in line for line in model.findings)
    reader().save_pretrained(folder)  # sentence-transformers wants one
    assert np.abs(embed(folder, TEXTS) - SentenceTransformer(str(folder), device="cpu").encode(TEXTS)).max() < 1e-5


def test_an_adapter_in_the_folder_of_a_module(encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write_adapter(folder / "0_Transformer", encoder)
    reader().save_pretrained(folder / "0_Transformer")
    first, second = listed("Transformer", "Pooling")
    write_pooled(folder)
    write_json(folder, modules=[first | {"path": "0_Transformer"}, second])
    assert np.abs(embed(folder, TEXTS) - peft_rows(folder / "0_Transformer", encoder, TEXTS)).max() < 1e-5


def test_an_adapter_of_a_class_with_a_head_fits_the_encoder(encoder: Path, tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "adapter", encoder, auto=AutoModelForMaskedLM)
    assert np.abs(embed(folder, TEXTS) - SentenceTransformer(str(folder), device="cpu").encode(TEXTS)).max() < 1e-5


def test_a_classifier_keeps_the_head_of_its_base(tmp_path: Path) -> None:
    """Where the head was not trained with the adapter."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    write_encoder(base, "tiny-bert", "sequence-classification", labels=3)
    write_adapter(folder, base, auto=AutoModelForSequenceClassification, target_modules="all-linear")
    reader().save_pretrained(folder)
    model = load(str(folder), CPU)
    pairs = [("w1 w2", "w3"), ("w4", "w5 w6 w7")]
    peft = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base), str(folder)).eval()
    with torch.inference_mode():
        expected = torch.cat([peft(**reader()(*pair, return_tensors="pt")).logits for pair in pairs]).numpy()
    ids = [reader()(*pair)["input_ids"] for pair in pairs]
    starts = tuple(len(reader()(first)["input_ids"]) for first, _ in pairs)
    logits = scores(ask(ModelEngine(model), Classify(), ids, second_segments=starts), 3)
    assert np.abs(logits - expected).max() < 1e-5


def test_the_fingerprint_counts_base_and_adapter(encoder: Path, tmp_path: Path) -> None:
    """Two adapters of a base differ, the base differs from both, and so does an adapter that changed."""
    one, other = (write_sentence_model(tmp_path / str(seed), encoder, seed=seed) for seed in (1, 2))
    prints = [load(str(folder), CPU).fingerprint for folder in (encoder, one, other)]
    change_tensors(one, **{"layer.0.attention.self.query.lora_A": torch.ones(2, 64)})
    prints.append(load(str(one), CPU).fingerprint)
    base = tmp_path / "base"
    shutil.copytree(encoder, base)
    change_config(other, base_model_name_or_path=str(base))
    write_json(base, config=json.loads((base / "config.json").read_text()) | {"layer_norm_eps": 1e-6})
    prints.append(load(str(other), CPU).fingerprint)
    assert len({*prints}) == len(prints)


def a_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def nothing(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def nested(folder: Path) -> None:
    """Its base is an adapter."""
    shutil.copytree(folder, folder.parent / "inner")
    change_config(folder, base_model_name_or_path=str(folder.parent / "inner"))


def tensors(**changed: Any) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, **{name.replace("__", "."): value for name, value in changed.items()})


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **values)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "another type": (config(peft_type="IA3"), "adapter_config.json: peft_type IA3 is not served, LORA is"),
    "no type": (config(peft_type=None), "adapter_config.json: peft_type of an unknown type is not served"),
    "an option of a later release": (config(use_more=True), "adapter_config.json: use_more = True: only LoRA"),
    "a base that is changed first": (config(init_lora_weights="pissa"), "init_lora_weights = 'pissa' changes"),
    "a rank that is no number": (config(r="2"), "adapter_config.json: r '2' must be a whole number"),
    "a factor that is no number": (config(lora_alpha=None), "adapter_config.json: lora_alpha None must be a number"),
    "a pattern that is none": (config(target_modules="("), "adapter_config.json: target_modules '(' is no pattern"),
    "biases of an unknown kind": (config(bias="some"), "adapter_config.json: bias = 'some': only LoRA"),
    "a wrong rank": (config(r=3), "lora_A has the shape [2, 64], its place wants [3, 64]"),
    "no base": (config(base_model_name_or_path=None), "it names no base"),
    "a base that is not there": (config(base_model_name_or_path="/no/where"), "base_model_name_or_path /no/where: "),
    "a base with an adapter": (nested, "has an adapter itself"),
    "a pickle": (a_pickle, "adapter_model.bin is a pickle"),
    "no tensors": (nothing, "adapter_model.safetensors is missing"),
    "half a pair": (
        tensors(layer__0__attention__self__query__lora_B=None),
        "query.lora_A.weight stands without its lora_B",
    ),
    "a missing pair": (tensors(layer__1=None), "lacks lora_A and lora_B of encoder.layer.1.attention.self.query"),
    "more than is named": (config(target_modules=["value"]), "query.lora_A.weight is of a module that target_modules"),
    "not a number": (tensors(lora_A=torch.full((2, 64), float("nan"))), "holds numbers that are not finite"),
    "another width": (tensors(lora_A=torch.ones(2, 32)), "lora_A has the shape [2, 32], its place wants [2, 64]"),
    "trained biases that are missing": (config(bias="lora_only"), "lacks encoder.layer.0.attention.self.query.bias"),
}


@pytest.fixture(scope="module")
def adapter(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that is served, not to be changed."""
    return write_sentence_model(tmp_path_factory.mktemp("adapter") / "adapter", encoder)


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_refused_by_its_name(adapter: Path, tmp_path: Path, case: str) -> None:
    """In one line, with the folder that the user knows."""
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    break_it, words = BROKEN[case]
    break_it(folder)
    said = refusal(folder)
    assert words in said
    assert str(tmp_path) in said


TO_MERGE: dict[str, tuple[dict[str, Any], str, str]] = {
    "DoRA": (
        {"use_dora": True},
        "use_dora = True",
        "encoder.layer.0.attention.self.query.lora_magnitude_vector",
    ),
    "tokens": (
        {"trainable_token_indices": {"word_embeddings": [11, 12]}},
        "trainable_token_indices = {'word_embeddings': [11, 12]}",
        "embeddings.word_embeddings.token_adapter.trainable_tokens_delta",
    ),
    "whole modules": (
        {"modules_to_save": ["LayerNorm"]},
        "modules_to_save = ['LayerNorm']",
        "embeddings.LayerNorm.bias",
    ),
    "all biases": ({"bias": "all"}, "bias = 'all'", ""),
    "two forms": (
        {"use_dora": True, "modules_to_save": ["LayerNorm"]},
        "modules_to_save = ['LayerNorm'], use_dora = True",
        "",
    ),
    "a bias": ({"bias": "lora_only"}, "", "encoder.layer.0.attention.self.query.base_layer.bias"),
    "embeddings": (
        {"target_modules": ["word_embeddings", "key"]},
        "",
        "embeddings.word_embeddings.lora_embedding_A",
    ),
}
"""Options of PEFT, what adapter_config.json says of them, and the weight that tells it where that does not."""


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("form", TO_MERGE)
def test_more_than_lora_of_linear_layers_is_to_be_merged(encoder: Path, tmp_path: Path, form: str) -> None:
    """By one line, which names what the adapter has: older releases of PEFT left some out of adapter_config.json."""
    options, setting, weight = TO_MERGE[form]
    folder = write_sentence_model(tmp_path / "adapter", encoder, **options)
    if setting:
        assert f"adapter_config.json: {setting}{MERGE}" in refusal(folder)
    if weight:
        change_config(folder, use_dora=False, trainable_token_indices=None, modules_to_save=None, bias="none")
        assert f"adapter_model.safetensors: base_model.model.{weight}{MERGE}" in refusal(folder)


def test_layers_of_gpt2_are_to_be_merged(tmp_path: Path) -> None:
    miniature.write(tmp_path / "base", "gpt2")
    layers = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    folder = write_sentence_model(tmp_path / "adapter", tmp_path / "base", **layers)
    key = "base_model.model.h.0.attn.c_attn.lora_A.weight of a Conv1D"
    assert f"adapter_model.safetensors: {key}{MERGE}" in refusal(folder)


def test_an_adapter_of_another_base_is_refused(encoder: Path, tmp_path: Path) -> None:
    write_encoder(tmp_path / "other", "tiny-qwen3")
    folder = write_sentence_model(tmp_path / "adapter", tmp_path / "other", target_modules=["q_proj"])
    change_config(folder, base_model_name_or_path=str(encoder))
    assert "q_proj.lora_A.weight has no place: BertModel has no layers.0.self_attn.q_proj" in refusal(folder)


def test_weights_of_an_adapter_stand_for_no_pickle(tmp_path: Path) -> None:
    """A model saved as a pickle beside adapter_model.safetensors: the pickle is what is read, so it counts."""
    files = [tmp_path / name for name in ("pytorch_model.bin", "adapter_model.safetensors", "a/pytorch_model.bin")]
    assert pickles_beside_safetensors(files) == set()
    files += [tmp_path / "a" / "model-00001-of-00002.safetensors"]
    assert pickles_beside_safetensors(files) == {tmp_path / "a" / "pytorch_model.bin"}
