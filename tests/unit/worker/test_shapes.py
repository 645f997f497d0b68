"""Shapes for measuring are those of the published models; their weights are not built, some would not fit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig

from benchmarks.accelerator.engine import WORKLOADS
from benchmarks.workloads import named
from gpu_worker.device.placement import Placement
from harness.random_models import synthetic
from support.random_models import described

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


def test_modernbert_looks_far_in_every_third_layer() -> None:
    """64 tokens to each side in the others, with a base of rotary positions of their own."""
    config, _ = described("modernbert-base")
    kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(22)]
    assert (config.local_attention, config.layer_types) == (128, kinds)
    bases = {kind: each["rope_theta"] for kind, each in config.rope_parameters.items()}
    assert bases == {"full_attention": 160_000.0, "sliding_attention": 10_000.0}


def test_an_unknown_shape_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match=r"gritlm-7b.*qwen3-embedding-0\.6b"):
        synthetic.shape_of("gritlm-8b")


class _Places(TorchDispatchMode):
    """Notes where tensors are made, and the largest in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()
        self.widest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        for each in tree_leaves(output):
            if isinstance(each, Tensor):
                self.devices.add(each.device.type)
                self.widest = max(self.widest, each.numel() if each.dtype == torch.float32 else 0)
        return output


@pytest.mark.parametrize("name", sorted({named("full")[each].model.removeprefix("random:") for each in WORKLOADS}))
def test_random_weights_are_made_on_the_device(name: str) -> None:
    """In the dtype that is served: seven billion float32 numbers of a host would take minutes and 28 GB."""
    config, recipe = synthetic.shape_of(name)
    with _Places() as places:
        placement = Placement(device=torch.device("meta"), dtype=torch.bfloat16)
        model = synthetic.build(config, recipe.weights_of, placement)
    assert places.devices == {"meta"}
    assert places.widest < 10_000
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
