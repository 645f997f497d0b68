"""Half-precision weights as float32, converted as they are read: the same bits as all at once, in a layer's memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import CONFIG_MAPPING

from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.model import tuning
from gpu_worker.model.encoder.encoder import dense_run
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions, quiet
from gpu_worker.model.verify import own_run
from gpu_worker.model.verify.gate import take_reference
from gpu_worker.model.verify.own_run import Widened
from gpu_worker.repository import weights
from harness.random_models import miniature, synthetic
from harness.supported_models import listed
from shared.errors import ModelRefused
from support.random_models import random_model

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
LISTED = list(listed(PAGE.read_text()))
OFTEN = {"bert", "bloom", "deberta", "deberta-v2", "gemma3_text", "gpt_oss", "jamba", "longformer", "mamba", "mixtral"}
OFTEN |= {"qwen3", "roformer", "t5", "xlnet"}
"""Weights that are looked at, cut into experts, read elsewhere, tied, multiplied from the left."""
LENGTHS = (40, 5, 17)


def built(kind: str, dtype: torch.dtype) -> nn.Module:
    """A tiny model of this type with random weights."""
    config = miniature.config_of(kind)
    chosen = weights.class_of(config, "encoder") if kind in weights.ENCODERS else miniature.model_class(type(config))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model: nn.Module = chosen(config).eval()
    miniature.widen(model, float(getattr(config, "initializer_range", 0.2)))
    return model.to(dtype)


def hidden(model: nn.Module) -> list[Tensor]:
    """Of texts of a few lengths, one at a time."""
    generator = np.random.default_rng(0)
    texts = [torch.from_numpy(generator.integers(5, 200, (1, length))) for length in LENGTHS]
    with torch.inference_mode():
        return [dense_run(model, text, torch.ones_like(text)) for text in texts]


def same_bits(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(mine.dtype == other.dtype and torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(kind, dtype, marks=() if kind in OFTEN and dtype == torch.bfloat16 else pytest.mark.slow)
        for kind in LISTED
        for dtype in (torch.bfloat16, torch.float16)
    ],
)
def test_every_architecture_has_the_bits_of_the_whole_conversion(kind: str, dtype: torch.dtype) -> None:
    """And its weights afterwards, the very tensors that they were."""
    with quiet():
        try:
            model = built(kind, dtype)
            with own_run.at_once(model):
                expected = hidden(model)
        except Exception as error:
            pytest.skip(f"its own class does not run: {error}")
        before = dict(model.named_parameters())
        bits = {name: weight.detach().clone() for name, weight in before.items()}
        with own_run.as_read(model):
            ours = hidden(model)
    assert same_bits(ours, expected)
    after = dict(model.named_parameters())
    assert all(after[name] is before[name] and type(after[name]) is nn.Parameter for name in before)
    assert all(torch.equal(after[name].view(torch.int16), bits[name].view(torch.int16)) for name in before)


def test_the_types_that_are_tried_at_every_run_exist() -> None:
    assert set(LISTED) >= OFTEN
    assert set(CONFIG_MAPPING) >= OFTEN


class Stubborn(nn.Module):
    """Foreign code that works with a weight in ways of its own."""

    def __init__(self, use: Callable[[nn.Parameter], Tensor]) -> None:
        super().__init__()
        self.weight, self.use, self.runs = nn.Parameter(torch.randn(3)), use, 0

    def forward(self) -> Tensor:
        self.runs += 1
        return self.use(self.weight)


@pytest.mark.parametrize(
    "use",
    [lambda weight: torch.from_numpy(weight.detach().numpy() + 1), lambda weight: weight.data.mul_(2) + 0],
    ids=["memory", "changed"],
)
def test_what_cannot_be_read_so_is_converted_at_once(use: Callable[[nn.Parameter], Tensor]) -> None:
    """A class that looks at memory itself, and one that changes a weight, which would be lost."""
    model = Stubborn(use).bfloat16()
    bits = model.weight.detach().clone()
    with torch.inference_mode():
        ours = own_run.in_float32(model, model)
    assert model.runs == 2
    assert torch.equal(ours, bits.float() + 1) or torch.equal(ours, bits.float() * 2)


def test_an_error_is_told_and_the_weights_are_back() -> None:
    """What is wrong for another reason is wrong in either way."""

    def fail(_: nn.Parameter) -> Tensor:
        raise ModelRefused("a bug")

    model = Stubborn(fail).half()
    weight = model.weight
    with pytest.raises(ModelRefused, match="a bug"):
        own_run.in_float32(model, model)
    assert model.weight is weight
    assert model.weight.dtype == torch.float16


class Counter:
    """Of bytes of float32 weights that are alive."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most, self._alive = 0, list[tuple[StorageWeakRef, int]]()
        widen = own_run.widen

        def counted(weight: Widened) -> Tensor:
            made = widen(weight)
            self._alive = [(memory, size) for memory, size in self._alive if not memory.expired()]
            self._alive.append((StorageWeakRef(made.untyped_storage()), made.untyped_storage().nbytes()))
            self.most = max(self.most, sum(size for _, size in self._alive))
            return made

        patch.setattr(own_run, "widen", counted)


def float32_bytes(module: nn.Module) -> int:
    return 4 * sum(weight.numel() for weight in module.parameters())


NAMES = [
    *(("tiny-bert", "float16"), ("tiny-deberta-v2", "bfloat16"), ("tiny-t5", "float16")),
    *(("tiny-modernbert", "bfloat16"), ("tiny-splade", "bfloat16")),
]


@pytest.mark.parametrize(("name", "dtype"), NAMES)
def test_a_load_holds_one_module_in_float32(name: str, dtype: Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all runs of both gates, heads of a vocabulary included; of a table only the rows that are read."""
    counter, placement = Counter(monkeypatch), Placement.choose("cpu", dtype)
    monkeypatch.setattr(tuning, "take_reference", take_reference)  # taken anew, whatever other tests remember
    monkeypatch.setattr(own_run, "at_once", None)  # nothing falls back
    # The gate runs a text that is as long as one may be.
    load(random_model(name), placement, LoadOptions(max_tokens=100))
    config, recipe = synthetic.shape_of(name)
    whole = synthetic.build(config, recipe.weights_of, placement)
    leaves = [part for part in whole.modules() if not list(part.children()) and not isinstance(part, nn.Embedding)]
    assert 0 < counter.most <= max(map(float32_bytes, leaves))
    assert name == "tiny-splade" or counter.most * 10 < float32_bytes(whole)
