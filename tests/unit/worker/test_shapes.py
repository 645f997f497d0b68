"""Shapes for measuring are those of the published models; their weights are not built, some would not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from harness.random_models import shapes, synthetic
from harness.random_models.writing import write
from support.random_models import described
from support.tiny import CPU, DENSE, MULTI, ask, dense_rows, encode, token_rows

NOWHERE = Placement(device=torch.device("meta"), dtype=torch.bfloat16)
# name -> model type, layers, width, heads, key and value heads, feed-forward width, vocabulary, positions
PUBLISHED: dict[str, tuple[str, int, int, int, int, int, int, int]] = {
    "jina-colbert-v2": ("jina_embeddings_v3", 24, 1024, 16, 16, 4096, 250002, 8194),
    "bge-m3": ("xlm-roberta", 24, 1024, 16, 16, 4096, 250002, 8194),
    "multilingual-e5-base": ("xlm-roberta", 12, 768, 12, 12, 3072, 250002, 514),
    "bge-base-en": ("bert", 12, 768, 12, 12, 3072, 30522, 512),
    "qwen3-embedding-0.6b": ("qwen3", 28, 1024, 16, 8, 3072, 151669, 32768),
    "gritlm-7b": ("mistral", 32, 4096, 32, 8, 14336, 32000, 32768),
    "modernbert-base": ("modernbert", 22, 768, 12, 12, 1152, 50368, 8192),
}
# name -> parameters of the published weights
PARAMETERS = {
    "jina-colbert-v2": 559_000_000,
    "bge-m3": 567_754_752,
    "multilingual-e5-base": 278_044_162,
    "bge-base-en": 109_482_752,
    "qwen3-embedding-0.6b": 595_776_512,
    "gritlm-7b": 7_241_732_096,
    "modernbert-base": 149_655_232,
}


def unused_output(name: str, config: PretrainedConfig) -> int:
    """Parameters of an output matrix that the published weights have beside the embeddings: vectors need none."""
    return config.vocab_size * config.hidden_size if name == "gritlm-7b" else 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_is_that_of_the_published_config(name: str) -> None:
    config, _ = described(name)
    sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    key_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    lengths = (config.intermediate_size, config.vocab_size, config.max_position_embeddings)
    assert (config.model_type, *sizes, key_heads, *lengths) == PUBLISHED[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_within_one_percent_of_the_published(name: str) -> None:
    """Counted on the class that would serve, which has nothing but shapes here."""
    config, heads = synthetic.shape_of(name)
    model = synthetic.build(config, heads.weights_of, NOWHERE)
    count = sum(each.numel() for each in model.parameters()) + unused_output(name, config)
    assert count == pytest.approx(PARAMETERS[name], rel=0.01)


def test_the_names_of_published_models_are_known_in_any_case() -> None:
    assert described("Qwen3-Embedding-0.6B")[0].vocab_size == 151669
    assert described("GritLM-7B")[1] == described("gritlm-7b")[1]


def test_bge_m3_has_three_outputs_as_the_tiny_one_has() -> None:
    _, large = described("bge-m3")
    _, tiny = described("tiny-bge-m3")
    assert large.multi_vector is not None
    assert large.sparse is not None
    assert large.sparse.layer is not None
    colbert = large.multi_vector.layers[0]
    assert (colbert.weights, large.sparse.layer.weights) == ("colbert_linear", "sparse_linear")
    assert shapes.HEADED["bge-m3"][1].linear == {"colbert_linear": 1024, "sparse_linear": 1}
    assert (large.multi_vector, large.sparse, large.dense) == (tiny.multi_vector, tiny.sparse, tiny.dense)


def test_qwen3_embedding_is_causal_and_takes_the_last_token() -> None:
    """Heads of 128, wider together than the hidden states; one base of its rotary positions."""
    config, recipe = described("qwen3-embedding-0.6b")
    assert (config.head_dim, config.rope_parameters["rope_theta"], config.sliding_window) == (128, 1e6, None)
    assert getattr(config, "is_causal", True)
    assert recipe.dense is not None
    assert (recipe.dense.poolings, recipe.dense.normalize) == (("lasttoken",), True)


def test_gritlm_sees_both_ways_and_leaves_its_instruction_out() -> None:
    """Mean pooling after the mark, which its tokenizer can tell."""
    config, recipe = described("gritlm-7b")
    assert (config.is_causal, recipe.config) == (False, {"is_causal": False})
    assert (config.head_dim, config.sliding_window) == (128, 4096)
    assert recipe.dense is not None
    assert (recipe.dense.poolings, recipe.dense.normalize) == (("mean",), True)
    assert recipe.instruction_mark == "<|embed|>\n"
    marks = synthetic.tokenizer(config.vocab_size).marks(recipe.instruction_mark)
    assert all(len(mark) > 1 and synthetic.SPECIAL["unk"] not in mark for mark in marks)


def test_gritlm_loads_where_its_encoder_is_narrow(tmp_path: Path) -> None:
    """Its recipe is one that can be served; a vector is the mean of the rows after its mark."""
    config, _ = synthetic.shape_of("tiny-mistral-bidirectional")
    model = load(str(write(tmp_path, config, shapes.HEADED["gritlm-7b"][1])), CPU)
    mark, text = list(model.instruction_marks[0]), [500, 501, 502]
    result = ask(ModelEngine(model), encode(DENSE, MULTI, normalize=False, normalize_tokens=False), [[7, *mark, *text]])
    after = token_rows(result)[0][-len(text) :]
    np.testing.assert_allclose(dense_rows(result)[0], after.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_modernbert_looks_far_in_every_third_layer() -> None:
    """64 tokens to each side in the others, with a base of rotary positions of their own."""
    config, _ = described("modernbert-base")
    kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(22)]
    assert (config.local_attention, config.layer_types) == (128, kinds)
    bases = {kind: each["rope_theta"] for kind, each in config.rope_parameters.items()}
    assert bases == {"full_attention": 160_000.0, "sliding_attention": 10_000.0}


def test_every_headed_shape_has_a_encoder() -> None:
    """Its name would be refused otherwise, when first asked for."""
    assert {encoder for encoder, _ in shapes.HEADED.values()} <= set(shapes.ALL_SHAPES)


def test_an_unknown_shape_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match=r"gritlm-7b.*qwen3-embedding-0\.6b"):
        synthetic.shape_of("gritlm-8b")
