"""Weights of a checkpoint that transformers' class does not take: refused by name where they lie inside of the encoder,
left out where they do not. The encoder's own pooler is left out where no output is made of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from gpu_worker.model.heads.building import UnusedPooler
from gpu_worker.model.heads.heads import EncoderStandIn
from gpu_worker.model.loading import load
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.model.source import quiet
from gpu_worker.repository import weights
from gpu_worker.repository.recipe import Recipe, WeightsOf
from harness import supported_models as census
from harness.random_models import miniature
from shared.errors import ModelRefused
from support.architectures import LISTED, TOLD
from support.breakages import refusal
from support.parity import Tables
from support.tiny import CPU, rows, write_encoder

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3 w4 w5", "w9 w8"]


def add(folder: Path, *names: str) -> None:
    """Adds weights of these names to a checkpoint."""
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(3, 5) for name in names}, file, metadata={"format": "pt"})


DISTANCES = "encoder.layer.0.attention.self.distance_embedding.weight"
INSIDE: dict[str, tuple[str, WeightsOf, str]] = {
    "relative positions of transformers 4": ("tiny-bert", "encoder", DISTANCES),
    "the same below a head": ("tiny-bert", "masked-lm", f"bert.{DISTANCES}"),
    "a bias of a layer": ("tiny-qwen3", "causal-lm", "model.layers.1.mlp.up_proj.bias"),
    "a weight of the embeddings": ("tiny-bert", "encoder", "embeddings.word_scale"),
    "a norm over the embeddings": ("tiny-qwen3", "causal-lm", "model.embed_norm.weight"),
    "a norm of a bare encoder": ("tiny-bert", "encoder", "last_norm.weight"),
    "an expert of a layer": ("tiny-bert", "encoder", "encoder.layer.0.experts.7.weight"),
}


@pytest.mark.parametrize("case", INSIDE)
def test_what_lies_inside_of_the_encoder_is_refused(tmp_path: Path, case: str) -> None:
    """A layer, an embedding or a norm that the class does not have: its rows would be others."""
    name, saved, key = INSIDE[case]
    write_encoder(tmp_path, name, saved)
    add(tmp_path, key)
    assert f"Model of transformers takes no {key}, which lie inside of the encoder" in refusal(tmp_path)


LEFT_OUT: list[tuple[str, WeightsOf, tuple[str, ...]]] = [
    ("tiny-bert", "encoder", ("cls.predictions.bias", "cls.seq_relationship.weight", "pooler.norm.weight")),
    ("tiny-bert", "masked-lm", ("vocab_layer_norm.weight",)),
    ("tiny-modernbert", "encoder", ("pooler.dense.weight",)),
    ("tiny-deberta-v2", "encoder", ("lm_predictions.lm_head.bias", "some_predictions.dense.bias")),
    ("tiny-qwen3", "encoder", ("lm_head.weight",)),
    ("tiny-qwen3", "causal-lm", ("audio.norm.weight", "model.embed_vision.weight")),
    ("tiny-qwen3", "causal-lm", ("model.layers.61.embed_tokens.weight",)),
]
"""Heads of pretraining and poolers, towers of sounds and pictures, a layer that predicts further tokens."""


@pytest.mark.parametrize(("name", "saved", "keys"), LEFT_OUT)
def test_what_lies_outside_is_left_out_and_told(
    tmp_path: Path, name: str, saved: WeightsOf, keys: tuple[str, ...]
) -> None:
    """Rows are those without it, and the notice names it."""
    write_encoder(tmp_path, name, saved)
    before = load(str(tmp_path), CPU)
    assert [key for key in keys if key in before.notice] == []
    add(tmp_path, *keys)
    model = load(str(tmp_path), CPU)
    assert np.array_equal(rows(model, TEXTS), rows(before, TEXTS))
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


OFTEN = {"albert", "bart", "bert", "deberta-v2", "gemma3_text", "gpt2", "modernbert", "qwen3", "t5", "xlnet"}
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
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in LISTED]
)
def test_no_checkpoint_that_transformers_itself_saves_is_refused_for_what_it_holds(kind: str, tmp_path: Path) -> None:
    """Of every class of a family, as its bare encoder and as the class itself."""
    refusals = [
        _refusal(tmp_path / str(number), loaded_as)
        for number, weights_of in enumerate(_save(kind, tmp_path))
        for loaded_as in sorted({"encoder", weights_of})
    ]
    assert [refused for refused in refusals if "inside of the encoder" in refused] == []
    assert "" in refusals or TOLD[kind] == census.REFUSED


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


@pytest.mark.parametrize(("output", "poolers"), [("vectors", 0), ("cross-encoder", 1)])
def test_no_step_runs_a_pooler_that_nobody_reads(
    tables: Tables, output: str, poolers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates have passed: hidden states and logits are those of the class with its pooler."""
    monkeypatch.delitem(FAMILIES, "bert")  # the kernels run no pooler in any case
    model = load(str(tables.folder("tiny-bert", output)), CPU)
    assert isinstance(model.encoder.model.pooler, UnusedPooler)
    modules = [module for head in model.heads.modules() for module in head.modules()]
    stand_ins = [module for module in modules if isinstance(module, EncoderStandIn)]
    assert [type(stand_in.pooler).__name__ for stand_in in stand_ins] == ["BertPooler"] * poolers
    assert all(isinstance(stand_in.pooler, nn.Module) for stand_in in stand_ins)
