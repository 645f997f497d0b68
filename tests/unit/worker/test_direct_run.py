"""Modules around layers are called without the model's own code, with the same bits, where it does nothing else."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.joining import DIRECT
from gpu_worker.model.loading import load
from gpu_worker.model.tune.direct_run import DirectRun, add_direct_run
from gpu_worker.model.tune.embedding_sum import EmbeddingSum
from gpu_worker.model.tune.joined_layers import join_layers
from gpu_worker.model.tune.module_calls import ModuleCall, RepeatedCall, record_calls
from gpu_worker.model.tune.native_layers import NativeLayer
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch
from support.native import LIBRARY, needs_kernels
from support.random_models import random_model

pytestmark = needs_kernels


def encoder_of(name: str, dtype: Dtype = "float32") -> PackedEncoder:
    """The encoder of a tiny random model, which a load lets run directly."""
    model = load(random_model(name), Placement.choose("cpu", dtype))
    assert DIRECT in model.findings
    assert isinstance(model.encoder, PackedEncoder)
    return model.encoder


def rows_of(encoder: PackedEncoder, lengths: Sequence[int] = (1, 40, 300), seconds: Sequence[int] = ()) -> Tensor:
    """Hidden states of texts of these lengths, or of pairs whose second texts begin at `seconds`, in one batch."""
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in lengths]
    types = encoder.token_types
    batch = RaggedBatch.pack(texts, encoder.device, encoder.uncounted, types=types, second_segments=seconds)
    with torch.inference_mode():
        return encoder(batch)


def add(encoder: PackedEncoder) -> str:
    """Records a run anew, and lets the encoder run directly where it can; else the reason."""
    encoder.direct = ()
    batch = Probes.of(encoder.model.config, 64).batch(range(3), encoder)
    calls = record_calls(encoder.model, lambda: encoder(batch))
    return add_direct_run(encoder, join_layers(encoder, calls, batch), calls, batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["tiny-bert", "tiny-roberta", "tiny-nomic-bert", "tiny-qwen3", "tiny-modernbert", "tiny-gemma3"]
)
def test_a_direct_run_gives_the_bits_of_the_models_own_code(
    name: str, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that count some tokens only, rotary angles of one kind and of two, and a normalisation at the end."""
    if getattr(torch, dtype) not in LIBRARY.formats:
        pytest.skip(f"the kernels have no {dtype} here")
    encoder = encoder_of(name, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(type(encoder.model), "forward", None)
        directly = rows_of(encoder)
    encoder.direct = ()
    assert torch.equal(rows_of(encoder), directly)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-cross-encoder", "tiny-nomic-bert"])
def test_texts_and_pairs_run_directly_in_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs have token types, which single texts do not."""
    encoder, pairs = encoder_of(name), ((9, 40, 300), (4, 0, 150))
    with monkeypatch.context() as patch:
        patch.setattr(type(encoder.model), "forward", None)
        directly = [rows_of(encoder), rows_of(encoder, *pairs), rows_of(encoder)]
    assert not torch.equal(rows_of(encoder, pairs[0]), directly[1])
    encoder.direct = ()
    assert all(map(torch.equal, [rows_of(encoder), rows_of(encoder, *pairs), rows_of(encoder)], directly))


def test_the_models_own_code_runs_where_a_step_has_other_inputs() -> None:
    encoder = encoder_of("tiny-bert")
    texts, _ = encoder.direct
    directly, ran = rows_of(encoder, (9, 40), (4, 0)), list[nn.Module]()
    encoder.direct = (texts,)
    with encoder.model.register_forward_hook(lambda model, *_: ran.append(model)):
        assert torch.equal(rows_of(encoder, (9, 40), (4, 0)), directly)
        rows_of(encoder)
    assert ran == [encoder.model]


def test_the_models_own_code_runs_where_layers_run_apart() -> None:
    encoder = encoder_of("tiny-bert")
    directly, ran = rows_of(encoder), list[nn.Module]()
    for module in encoder.model.modules():
        if isinstance(module, NativeLayer):
            module.joined = None
    with encoder.model.register_forward_hook(lambda model, *_: ran.append(model)):
        assert torch.equal(rows_of(encoder), directly)
    assert ran == [encoder.model]


def changed_states(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0] * 2, *arguments[1:])


def changed_output(_: Any, __: Any, output: Any) -> Any:
    output.last_hidden_state = output.last_hidden_state * 2
    return output


def test_the_models_own_code_runs_where_it_does_more() -> None:
    """Before layers, and behind them."""
    encoder = encoder_of("tiny-bert")
    first = encoder.model.encoder.layer[0]
    with first.register_forward_pre_hook(changed_states):
        assert add(encoder) == "no module makes the states before the first layer"
    with encoder.model.register_forward_hook(changed_output):
        assert add(encoder) == "more than a normalisation follows the layers"
    assert not encoder.direct
    assert add(encoder) == ""
    assert encoder.direct


def test_the_models_own_code_runs_where_bits_differ() -> None:
    """A tensor that it changes in place stays the same tensor."""
    encoder = encoder_of("tiny-bert")

    def changed_in_place(_: Any, arguments: tuple[Tensor, ...]) -> None:
        arguments[0].mul_(2)

    with encoder.model.encoder.register_forward_pre_hook(changed_in_place):
        assert add(encoder) == "hidden states have other bits"
    assert not encoder.direct


@pytest.mark.parametrize(
    ("name", "terms"), [("tiny-bert", 3), ("tiny-roberta", 3), ("tiny-distilbert", 2), ("tiny-qwen3", 0)]
)
def test_a_sum_of_tables_is_made_without_its_module(name: str, terms: int) -> None:
    direct, *_ = encoder_of(name).direct
    assert isinstance(direct, DirectRun)
    assert (len(direct.embeddings.terms) if isinstance(direct.embeddings, EmbeddingSum) else 0) == terms


class Embeddings(nn.Module):
    """Rows of two tables, normalised and handed on, as classes write them."""

    def __init__(self, *, doubled: bool = False) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, 8), nn.Embedding(3, 8)
        self.norm, self.drop, self.doubled = nn.LayerNorm(8), nn.Dropout(), doubled
        self.eval()

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        rows = self.words(ids) + self.kinds(kinds)
        rows = self.drop(self.norm(rows))
        return rows * 2 if self.doubled else rows


IDS, KINDS = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[0, 0, 1, 1, 2]])


def sum_of(module: Embeddings, kinds: Tensor, inputs: dict[str, Tensor]) -> EmbeddingSum:
    calls = record_calls(module, lambda: module(IDS, kinds))
    return EmbeddingSum.of(calls[-1], calls, inputs)


@pytest.mark.parametrize("kinds", [KINDS, torch.ones_like(KINDS)])
def test_a_sum_of_tables_gives_the_bits_of_its_module(kinds: Tensor) -> None:
    """Also of a table that nobody gives an index for: all tokens have one row of it."""
    module, named = Embeddings(), {"ids": IDS} | ({"kinds": kinds} if kinds is KINDS else {})
    embeddings, other = sum_of(module, kinds, named), torch.tensor([[9, 2, 6]])
    with torch.inference_mode():
        expected = module(other, kinds[:, :3])
        assert torch.equal(embeddings.make({"ids": other, "kinds": kinds[:, :3]}), expected)


def test_another_module_is_no_sum_of_tables() -> None:
    with pytest.raises(ValueError, match="no normalised sum of tables"):
        sum_of(Embeddings(doubled=True), KINDS, {"ids": IDS, "kinds": KINDS})
    with pytest.raises(ValueError, match="picked by something else"):
        sum_of(Embeddings(), KINDS, {"ids": IDS})


def test_a_sum_that_gives_other_bits_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's own call is made instead."""
    monkeypatch.setattr(EmbeddingSum, "make", lambda self, inputs: self.norm(self.terms[0].of(inputs)))
    direct, _ = encoder_of("tiny-bert").direct
    assert isinstance(direct, DirectRun)
    assert isinstance(direct.embeddings, RepeatedCall)


class Doubled(nn.Module):
    def forward(self, x: Tensor, *, times: float = 2.0, to: Tensor | None = None) -> Tensor:
        return x * times if to is None else to


def test_a_call_is_repeated_with_other_tensors() -> None:
    ids, positions = torch.ones(3), torch.zeros(3)
    call = ModuleCall(module=Doubled(), arguments=(ids,), keywords={"times": 3.0, "to": None}, output=None)
    again = RepeatedCall(call, {"ids": ids, "positions": positions})
    assert torch.equal(again.make({"ids": torch.arange(4), "positions": positions}), torch.arange(4) * 3.0)


@pytest.mark.parametrize("unknown", [torch.ones(3), [1], {"a": 1}, 45])
def test_a_call_with_anything_else_is_not_repeated(unknown: Any) -> None:
    ids = torch.ones(3)
    call = ModuleCall(module=Doubled(), arguments=(ids,), keywords={"to": unknown}, output=None)
    with pytest.raises(ValueError, match="no argument that a call can be repeated with"):
        RepeatedCall(call, {"ids": ids})
