"""T5, MT5 and UMT5: their encoders run packed, from every kind of checkpoint, as transformers and sentence-transformers
have them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import (
    AutoConfig,
    MT5EncoderModel,
    MT5Model,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5EncoderModel,
    UMT5Model,
)
from transformers.models.t5.modeling_t5 import T5Attention

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import OneByOne
from gpu_worker.kernels.attention.relative import t5
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from harness.random_models import miniature, shapes, synthetic
from shared.errors import ModelRefused
from support.flaws import Flawed
from support.onednn import PACKED
from support.tiny import CPU, DENSE, ask, dense_rows, encode, ids_of, referee, write_json

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "T5, ReLU": ("t5", {}),
    "T5 1.1, gated": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "MT5": ("mt5", {"feed_forward_proj": "gated-gelu"}),
    "UMT5, a table a layer": ("umt5", {"feed_forward_proj": "gated-gelu"}),
    "gated by SiLU, few buckets": ("t5", {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 8}),
}
CHECKPOINTS = [
    (T5EncoderModel, "t5"),
    (T5ForConditionalGeneration, "t5"),
    (MT5EncoderModel, "mt5"),
    (MT5Model, "mt5"),
    (UMT5EncoderModel, "umt5"),
    (UMT5Model, "umt5"),
]


def built(form: str, dtype: torch.dtype = torch.float32) -> Any:
    attention.register()
    kind, values = FORMS[form]
    config = AutoConfig.for_model(kind, **(shapes.T5 | values))
    model = synthetic.build(config, "encoder", Placement(device=CPU.device, dtype=dtype)).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(3))
    return model


EACH_WAY = [OneByOne(), EqualRuns()]
HALVES = (torch.bfloat16, torch.float16)
GATES = [
    pytest.param(form, dtype, packed, marks=pytest.mark.slow if (one + other) % (5 if dtype in HALVES else 2) else ())
    for one, form in enumerate(FORMS)
    for dtype in (torch.float32, *HALVES)
    for other, packed in enumerate(EACH_WAY)
]
"""Every form by every other way in float32, by one or two in half precision; all by `make test-slow`."""


@pytest.mark.parametrize(("form", "dtype", "packed"), GATES, ids=lambda each: getattr(each, "name", str(each)))
def test_every_form_passes_its_gate(form: str, dtype: torch.dtype, packed: attention.PackedAttention) -> None:
    """By each way of attention; the probes are longer than the furthest distance that is told apart."""
    model = built(form, dtype)
    referee(model).check(PackedEncoder(model, packed))


@pytest.mark.parametrize("flaw", ["mixes sequences", "ignores the bias", "scales"])
@pytest.mark.parametrize("form", FORMS)
def test_the_gate_sees_a_mistake(form: str, flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(form)
    reference = referee(model)
    if flaw == "scales":
        honest = t5.AttentionTerms
        monkeypatch.setattr(t5, "AttentionTerms", lambda scale, bias: honest(scale=scale * 0.9, bias=bias))
    with pytest.raises(ModelRefused, match="hidden states differ"):
        reference.check(PackedEncoder(model, Flawed(flaw)))


@given(st.sampled_from([8, 16, 32, 64]), st.integers(20, 300), st.integers(1, 700))
def test_buckets_are_transformers_buckets(buckets: int, furthest: int, distance: int) -> None:
    distances = torch.arange(-distance, distance + 1)
    expected = T5Attention._relative_position_bucket(distances, num_buckets=buckets, max_distance=furthest)
    assert torch.equal(t5.bucket(distances, buckets, furthest), expected)


def sentence_t5(folder: Path, model_class: Any, kind: str, dense: int = 0) -> SentenceTransformer:
    """A repository as sentence-t5 and gtr have it: T5, mean pooling, a Dense without bias or activation, Normalize."""
    config = AutoConfig.for_model(kind, **(shapes.T5 | {"feed_forward_proj": FORMS["MT5"][1]["feed_forward_proj"]}))
    torch.manual_seed(4)
    model_class(config).save_pretrained(folder)
    miniature.tokenizer_of(folder).save_pretrained(folder)
    names = ["Transformer", "Pooling", *["Dense"] * bool(dense), "Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(names)
    ]
    files = {"1_Pooling__config": {"pooling_mode": "mean", "embedding_dimension": 64}}
    if dense:
        identity = "torch.nn.modules.linear.Identity"
        shape = {"in_features": 64, "out_features": dense, "bias": False, "activation_function": identity}
        files["2_Dense__config"] = shape
        (folder / "2_Dense").mkdir()
        torch.save({"linear.weight": 0.2 * torch.randn(dense, 64)}, folder / "2_Dense" / "pytorch_model.bin")
    write_json(folder, modules=modules, sentence_bert_config={"max_seq_length": 256, "do_lower_case": False}, **files)
    return SentenceTransformer(str(folder), device="cpu")


def sentences(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [
        " ".join(f"w{each}" for each in generator.integers(0, 850, generator.integers(1, 200))) for _ in range(count)
    ]


BY_TURNS = [
    pytest.param(*checkpoint, dense, id=f"{checkpoint[0].__name__}-{name}", marks=pytest.mark.slow if skipped else ())
    for place, checkpoint in enumerate(CHECKPOINTS)
    for dense, name, skipped in ((0, "gtr without its Dense", place % 2 == 0), (48, "sentence-t5", place % 2))
]
"""Each checkpoint once; encoders alone with the Dense, whole models without. Both by `make test-slow`."""


@pytest.mark.parametrize(("model_class", "kind", "dense"), BY_TURNS)
def test_saved_as_sentence_t5_it_gives_its_vectors(model_class: Any, kind: str, dense: int, tmp_path: Path) -> None:
    """From encoders alone and from encoder-decoders, all texts in one step, within 1e-5; with packed layers."""
    theirs = sentence_t5(tmp_path, model_class, kind, dense)
    model = load(str(tmp_path), CPU)
    assert not model.encoder.unpacked_reason
    plain = [each for each in model.encoder.model.modules() if type(each) is nn.Linear]
    assert not (plain and PACKED)  # all of them are packed for oneDNN
    chosen = sentences(20)
    found = dense_rows(ask(ModelEngine(model), encode(DENSE), ids_of(model, chosen)))
    assert np.abs(found - theirs.encode(chosen, batch_size=1)).max() <= 1e-5


def test_a_text_among_others_is_the_text_alone(tmp_path: Path) -> None:
    sentence_t5(tmp_path, T5EncoderModel, "t5", dense=48)
    model = load(str(tmp_path), CPU)
    engine, (text, *others) = ModelEngine(model), ids_of(model, sentences(64, seed=1))
    alone = dense_rows(ask(engine, encode(DENSE), [text]))[0]
    for count in (1, 63):
        among = dense_rows(ask(engine, encode(DENSE), [*others[:count], text]))[-1]
        assert np.abs(among - alone).max() <= 1e-6


def test_a_text_may_be_longer_than_it_was_trained_on(tmp_path: Path) -> None:
    """Distances have no end: what the config calls positions is no limit."""
    theirs = sentence_t5(tmp_path, T5EncoderModel, "t5")
    model = load(str(tmp_path), CPU, LoadOptions(max_tokens=1000))
    assert model.max_tokens == 1000
    theirs.max_seq_length = 1000
    text = " ".join(sentences(12, seed=2))
    ids = ids_of(model, [text])
    assert len(ids[0]) > 700
    found = dense_rows(ask(ModelEngine(model), encode(DENSE), ids))
    assert np.abs(found - theirs.encode([text])).max() <= 1e-5
