"""Relative position terms of MPNet, DeBERTa, T5, MT5 and UMT5 are the model's own, by distance, and nothing grows with
the square of a step; T5's encoders run packed from every kind of checkpoint, as sentence-transformers has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
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
from gpu_worker.kernels.attention.relative import deberta, t5
from gpu_worker.model.encoder.encoder import uncounted_id_of
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.ragged.batch import RaggedBatch
from harness.random_models import miniature, shapes, synthetic
from shared.errors import ModelRefused
from support.flaws import Flawed
from support.onednn import PACKED
from support.tiny import CPU, DENSE, ask, dense_rows, encode, ids_of, listed, referee, write_json

FAMILIES = ["tiny-mpnet", "tiny-deberta-v2"]
DEBERTA = shapes.TINY | {"relative_attention": True, "pos_att_type": "c2p|p2c"}
GATED = {"feed_forward_proj": "gated-gelu"}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "absolute positions too": ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
    "distances cut": ("deberta-v2", {"max_relative_positions": 12}),
    "c2p only": ("deberta-v2", {"pos_att_type": "c2p", "position_buckets": 16}),
    "p2c only": ("deberta-v2", {"pos_att_type": ["p2c"], "position_buckets": 16, "share_att_key": True}),
    "logarithm cut": (
        "deberta-v2",
        {"position_buckets": 8, "max_relative_positions": 30, "norm_rel_ebd": "layer_norm"},
    ),
    "no term": ("deberta-v2", {"pos_att_type": "", "share_att_key": True}),
    "no relative attention": ("deberta-v2", {"relative_attention": False}),
    "T5, ReLU": ("t5", {}),
    "T5 1.1, gated": ("t5", GATED | {"tie_word_embeddings": False}),
    "MT5": ("mt5", GATED),
    "UMT5, a table a layer": ("umt5", GATED),
    "gated by SiLU, few buckets": ("t5", {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 8}),
}


def built(kind: str, values: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A tiny model of a type, with these values in its config."""
    attention.register()
    base = DEBERTA if kind == "deberta-v2" else {} if kind == "mpnet" else shapes.T5
    config = AutoConfig.for_model(kind, **(base | values))
    model = synthetic.build(config, "encoder", Placement(device=CPU.device, dtype=dtype)).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(3))
    return model


WAYS = [OneByOne(), EqualRuns()]
GATES = [
    (form, dtype, WAYS[(number + other) % 2])
    for number, form in enumerate(FORMS)
    for other, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16))
    if dtype != torch.float16 or FORMS[form][0] != "deberta-v2"
]
"""Every form in every number format, by the two ways of attention in turns."""


@pytest.mark.parametrize(("form", "dtype", "packed"), GATES, ids=lambda value: getattr(value, "name", str(value)))
def test_every_form_passes_its_gate(form: str, dtype: torch.dtype, packed: attention.PackedAttention) -> None:
    """The probes are longer than the furthest distance that is told apart."""
    model = built(*FORMS[form], dtype)
    referee(model).check(PackedEncoder(model, packed))


@pytest.mark.parametrize("flaw", ["mixes sequences", "ignores the bias", "scales"])
@pytest.mark.parametrize("form", ["T5, ReLU", "UMT5, a table a layer"])
def test_the_gate_sees_a_mistake(form: str, flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(*FORMS[form])
    reference = referee(model)
    if flaw == "scales":
        honest = t5.AttentionTerms
        monkeypatch.setattr(t5, "AttentionTerms", lambda scale, bias: honest(scale=scale * 0.9, bias=bias))
    with pytest.raises(ModelRefused, match="hidden states differ"):
        reference.check(PackedEncoder(model, Flawed(flaw)))


def test_a_convolution_over_tokens_is_refused() -> None:
    """It would reach over the borders of sequences; the first XL checkpoints have one."""
    model = built("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"})
    with pytest.raises(ModelRefused, match="conv_kernel_size = 3"):
        referee(model)


@given(st.sampled_from([8, 16, 32, 64]), st.integers(20, 300), st.integers(1, 700))
def test_buckets_of_t5_are_transformers_buckets(buckets: int, furthest: int, distance: int) -> None:
    distances = torch.arange(-distance, distance + 1)
    expected = T5Attention._relative_position_bucket(distances, num_buckets=buckets, max_distance=furthest)
    assert torch.equal(t5.bucket(distances, buckets, furthest), expected)


@given(st.integers(4, 600), st.integers(1, 300), st.integers(0, 500))
def test_buckets_of_deberta_are_transformers_buckets(buckets: int, distance: int, further: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    furthest = buckets // 2 + 2 + further
    distances = torch.arange(-distance, distance + 1)
    expected = make_log_bucket_position(distances, buckets, furthest).long()
    assert torch.equal(deberta.bucket(distances, buckets, furthest), expected)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 3), st.sampled_from(["c2p", "p2c", "both"]))
def test_disentangled_terms_equal_their_definition(length: int, further: int, count: int, kind: str) -> None:
    """arXiv:2006.03654, equation 4, pair by pair; the table may be that of a longer text."""
    torch.manual_seed(length)
    longest, heads, width = length + further, 2, 3
    keys, queries = (torch.randn(heads, 2 * longest - 1, width) for _ in range(2))
    query, key = (torch.randn(count * length, heads, width).transpose(0, 1) for _ in range(2))
    query, key = (states.view(heads, count, length, width).transpose(0, 1) for states in (query, key))
    expected = torch.zeros(count, heads, length, length)
    for i in range(length):
        for j in range(length):
            if kind != "p2c":
                expected[:, :, i, j] += (query[:, :, i] * keys[:, longest - 1 + j - i]).sum(-1)
            if kind != "c2p":
                expected[:, :, i, j] += (key[:, :, j] * queries[:, longest - 1 + i - j]).sum(-1)
    chosen = (None if kind == "p2c" else keys, None if kind == "c2p" else queries)
    assert torch.allclose(deberta.disentangled(*chosen, query, key), expected, atol=1e-5)


class Bound(TorchDispatchMode):
    """Fails on any tensor with more than so many numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.largest = numbers, 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        for made in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(made, Tensor):
                self.largest = max(self.largest, made.numel())
                assert made.numel() <= self.numbers, f"{function} made {tuple(made.shape)}"
        return output


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_grows_with_the_square_of_a_step(name: str) -> None:
    """16,384 tokens of 512 texts: no tensor has a sixteenth of 16,384^2 numbers."""
    config, _ = synthetic.shape_of(name)
    kind, _, values = synthetic.SHAPES[name]
    model = built(kind, values | {"num_hidden_layers": 1})
    referee(model)
    encoder = PackedEncoder(model, EqualRuns(), uncounted_id_of(model))
    batch = RaggedBatch.pack([np.full(32, 7, dtype=np.int32)] * 512, CPU.device, encoder.uncounted)
    with torch.inference_mode(), Bound(batch.total**2 // 16) as bound:
        assert encoder(batch).shape == (16_384, config.hidden_size)
    assert bound.largest >= batch.total * config.hidden_size  # it saw the step at all


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_step_leaves_nothing_behind(name: str) -> None:
    """The batch and its tables are let go, also where a layer fails."""
    model = built(name.removeprefix("tiny-"), synthetic.SHAPES[name][2])
    referee(model)
    step = model.encoder._state
    encoder = PackedEncoder(model, OneByOne(), uncounted_id_of(model))
    batch = RaggedBatch.pack([np.full(3, 7, dtype=np.int32)], CPU.device, encoder.uncounted)
    encoder(batch)
    assert step.call is step.by_distance is None
    model.encoder.layer[0].forward = None
    with pytest.raises(TypeError):
        encoder(batch)
    assert step.call is step.by_distance is None


CHECKPOINTS = [
    (T5EncoderModel, "t5", 48),
    (T5ForConditionalGeneration, "t5", 0),
    (MT5EncoderModel, "mt5", 48),
    (MT5Model, "mt5", 0),
    (UMT5EncoderModel, "umt5", 48),
    (UMT5Model, "umt5", 0),
]
"""Encoders alone with sentence-t5's Dense of 48 numbers, whole models without, as gtr has none."""


def sentence_t5(folder: Path, model_class: Any, kind: str, dense: int = 0) -> SentenceTransformer:
    """A repository as sentence-t5 and gtr have it: T5, mean pooling, a Dense without bias or activation, Normalize."""
    config = AutoConfig.for_model(kind, **(shapes.T5 | GATED))
    torch.manual_seed(4)
    model_class(config).save_pretrained(folder)
    miniature.tokenizer_of(folder).save_pretrained(folder)
    modules = listed("Transformer", "Pooling", *["Dense"] * bool(dense), "Normalize")
    files: dict[str, Any] = {"1_Pooling__config": {"pooling_mode": "mean", "embedding_dimension": 64}}
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
        " ".join(f"w{word}" for word in generator.integers(0, 850, generator.integers(1, 200))) for _ in range(count)
    ]


@pytest.mark.parametrize(("model_class", "kind", "dense"), CHECKPOINTS)
def test_saved_as_sentence_t5_it_gives_its_vectors(model_class: Any, kind: str, dense: int, tmp_path: Path) -> None:
    """All texts in one step within 1e-5; with packed layers. A text alone has the vector that it has among others."""
    theirs = sentence_t5(tmp_path, model_class, kind, dense)
    model = load(str(tmp_path), CPU)
    assert not model.encoder.unpacked_reason
    plain = [module for module in model.encoder.model.modules() if type(module) is nn.Linear]
    assert not (plain and PACKED)  # all of them are packed for oneDNN
    texts = sentences(20)
    engine, ids = ModelEngine(model), ids_of(model, texts)
    vectors = dense_rows(ask(engine, encode(DENSE), ids))
    assert np.abs(vectors - theirs.encode(texts, batch_size=1)).max() <= 1e-5
    for place in (0, 19):
        assert np.abs(dense_rows(ask(engine, encode(DENSE), [ids[place]]))[0] - vectors[place]).max() <= 1e-6


def test_a_text_may_be_longer_than_it_was_trained_on(tmp_path: Path) -> None:
    """Distances have no end: what the config calls positions is no limit."""
    theirs = sentence_t5(tmp_path, T5EncoderModel, "t5")
    model = load(str(tmp_path), CPU, LoadOptions(max_tokens=1000))
    assert model.max_tokens == 1000
    theirs.max_seq_length = 1000
    text = " ".join(sentences(12, seed=2))
    ids = ids_of(model, [text])
    assert len(ids[0]) > 700
    vectors = dense_rows(ask(ModelEngine(model), encode(DENSE), ids))
    assert np.abs(vectors - theirs.encode([text])).max() <= 1e-5
