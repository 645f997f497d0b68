"""Weights of a checkpoint that transformers' class does not take: refused by name where they lie inside of the encoder,
left out where they do not."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.model.loading import load
from gpu_worker.model.source import quiet
from gpu_worker.repository import weights
from gpu_worker.repository.recipe import Recipe, WeightsOf
from harness import supported_models as census
from harness.random_models import miniature
from shared.errors import ModelRefused
from support.architectures import LISTED, TOLD
from support.breakages import refusal, settings
from support.tiny import CPU, rows, write_encoder

TEXTS = ["w1 w2 w3 w4 w5", "w9 w8"]


def add(folder: Path, *names: str) -> None:
    """Adds weights of these names to a checkpoint."""
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(3, 5) for name in names}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("saved", ["encoder", "masked-lm"])
def test_relative_positions_of_earlier_versions_are_refused(tmp_path: Path, kind: str, saved: WeightsOf) -> None:
    """transformers 5 has no such positions, and its class would add absolute ones alone."""
    write_encoder(tmp_path, "tiny-bert", saved)
    settings("config.json", position_embedding_type=kind)(tmp_path)
    prefix = "bert." if saved == "masked-lm" else ""
    names = [f"{prefix}encoder.layer.{layer}.attention.self.distance_embedding.weight" for layer in (0, 1)]
    add(tmp_path, *names)
    said = refusal(tmp_path)
    assert f"BertModel of transformers takes no {names[0]}, {names[1]}, which lie inside of the encoder" in said


INSIDE: dict[str, tuple[str, WeightsOf, str]] = {
    "a bias of a layer": ("tiny-qwen3", "causal-lm", "model.layers.1.mlp.up_proj.bias"),
    "a weight of the embeddings": ("tiny-bert", "encoder", "embeddings.word_scale"),
    "a norm over the embeddings": ("tiny-qwen3", "causal-lm", "model.embed_norm.weight"),
    "a norm of a bare encoder": ("tiny-bert", "encoder", "last_norm.weight"),
    "an expert of a layer": ("tiny-bert", "encoder", "encoder.layer.0.experts.7.weight"),
}


@pytest.mark.parametrize("case", INSIDE)
def test_what_lies_inside_of_the_encoder_is_refused(tmp_path: Path, case: str) -> None:
    """A layer, an embedding or a norm that the class does not have."""
    name, saved, key = INSIDE[case]
    write_encoder(tmp_path, name, saved)
    add(tmp_path, key)
    assert key in refusal(tmp_path)


LEFT_OUT: dict[str, tuple[str, WeightsOf, tuple[str, ...]]] = {
    "heads of pretraining": ("tiny-bert", "encoder", ("cls.predictions.bias", "cls.seq_relationship.weight")),
    "a norm of a head": ("tiny-bert", "masked-lm", ("vocab_layer_norm.weight",)),
    "a pooler": ("tiny-modernbert", "encoder", ("pooler.dense.weight",)),
    "a pooler of another kind": ("tiny-bert", "encoder", ("pooler.norm.weight",)),
    "DeBERTa's heads": ("tiny-deberta-v2", "encoder", ("lm_predictions.lm_head.bias", "some_predictions.dense.bias")),
    "a language model's head": ("tiny-qwen3", "encoder", ("lm_head.weight",)),
    "towers of sounds and pictures": ("tiny-qwen3", "causal-lm", ("audio.norm.weight", "model.embed_vision.weight")),
    "a layer that predicts further tokens": ("tiny-qwen3", "causal-lm", ("model.layers.61.embed_tokens.weight",)),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_lies_outside_is_left_out_and_told(tmp_path: Path, case: str) -> None:
    """Rows are those without it, and the notice names it."""
    name, saved, keys = LEFT_OUT[case]
    write_encoder(tmp_path, name, saved)
    model = load(str(tmp_path), CPU)
    assert [key for key in keys if key in model.notice] == []
    expected = rows(model, TEXTS)
    add(tmp_path, *keys)
    model = load(str(tmp_path), CPU)
    assert np.array_equal(rows(model, TEXTS), expected)
    assert [key for key in keys if key not in model.notice] == []


def test_a_notice_names_a_few_of_many(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-bert")
    add(tmp_path, *(f"head.{number}.weight" for number in range(9)))
    said = "head.0.weight, head.1.weight, head.2.weight and 6 more"
    assert load(str(tmp_path), CPU).notice == f"weights that nothing here uses are left out: {said}"


CONSTANTS: dict[str, tuple[str, ...]] = {
    "bert": ("bert.embeddings.position_ids", "embeddings.token_type_ids"),
    "codegen": ("h.0.attn.causal_mask",),
    "esm": ("encoder.layer.0.attention.self.rotary_embeddings.inv_freq",),
    "gpt2": ("h.0.attn.bias", "h.0.attn.masked_bias"),
    "gpt_bigcode": ("transformer.h.0.attn.bias",),
    "gpt_neo": ("transformer.h.0.attn.attention.bias", "transformer.h.0.attn.attention.masked_bias"),
    "gpt_neox": ("gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
    "gptj": ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"),
    "llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.cos_cached"),
    "mbart": ("model.encoder.version", "model.decoder.version"),
    "openai-gpt": ("h.0.attn.bias",),
    "opt": ("decoder.version",),
    "persimmon": ("model.layers.0.self_attn.rotary_emb.inv_freq",),
    "t5": ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    "xglm": ("model.embed_positions.weights",),
}
"""What checkpoints of earlier versions hold beside weights, and the class now computes."""


@pytest.mark.parametrize("kind", CONSTANTS)
def test_constants_of_old_checkpoints_are_no_weights(tmp_path: Path, kind: str) -> None:
    """Positions, masks and tables of angles are neither refused nor told."""
    with quiet():
        miniature.write(tmp_path, kind)
    held = load_file(tmp_path / "model.safetensors")
    assert [name for name in CONSTANTS[kind] if name in held] == []
    add(tmp_path, *CONSTANTS[kind])
    with quiet():
        assert weights.load(tmp_path, Recipe(), CPU, False)[1] == ""


OFTEN = {
    "albert", "bart", "bert", "deberta-v2", "distilbert", "electra", "esm", "gemma3_text", "gpt2", "gpt_neox", "llama",
    "modernbert", "mt5", "qwen3", "roberta", "t5", "xlm", "xlnet",
}  # fmt: skip
HEADS: dict[str, WeightsOf] = {
    "AutoModel": "encoder",
    "AutoModelForPreTraining": "encoder",
    "AutoModelForMaskedLM": "masked-lm",
    "AutoModelForCausalLM": "causal-lm",
    "AutoModelForSequenceClassification": "sequence-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForSeq2SeqLM": "encoder",
}
"""Classes that write checkpoints, and which weights such a checkpoint is loaded as, beside those of a bare encoder."""


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in OFTEN else pytest.mark.slow) for each in LISTED]
)
def test_no_checkpoint_that_transformers_itself_saves_is_refused_for_what_it_holds(kind: str, tmp_path: Path) -> None:
    """Of every class of a family, as its bare encoder and as the class itself."""
    said = [
        _refusal(tmp_path / str(number), each)
        for number, weights_of in enumerate(_save(kind, tmp_path))
        for each in sorted({"encoder", weights_of})
    ]
    assert [each for each in said if "inside of the encoder" in each] == []
    assert "" in said or TOLD[kind] == census.REFUSED


def _refusal(folder: Path, weights_of: WeightsOf) -> str:
    """What a checkpoint is refused for; "" where it loads."""
    try:
        weights.load(folder, Recipe(weights_of=weights_of), CPU, False)
    except ModelRefused as refused:
        return str(refused)
    return ""


def _save(kind: str, folder: Path) -> list[WeightsOf]:
    """Saves a model of each class of a family that can be made, each in a numbered folder; which weights they hold."""
    saved: list[WeightsOf] = []
    with quiet():
        config = miniature.config_of(kind)
        for name, weights_of in HEADS.items():
            try:
                model = getattr(transformers, name).from_config(config)
            except Exception:  # a family without this class, or one that wants other settings for it
                continue
            model.save_pretrained(folder / str(len(saved)))
            saved.append(weights_of)
    return saved
