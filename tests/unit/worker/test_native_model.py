"""A whole model by the processor's kernels, as the table of families says: whole texts, pieces and texts that begin
alike have the same bits, alone and in any batch."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.model.heads.heads import EncoderStandIn
from gpu_worker.model.loading import Model, load
from gpu_worker.model.native.families import FAMILIES
from gpu_worker.model.native.native_model import NativeEncoder, NativeModel, _Call
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.verify.piece_check import run_in_pieces
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece, SequenceCache
from harness.random_models import miniature
from shared.errors import ModelRefused
from support.native import LIBRARY, needs_kernels
from support.random_models import random_model

pytestmark = needs_kernels
CPU = Placement.choose("cpu", "float32")
LENGTHS = 1, 40, 300


def encoder_of(path: str, number_format: str = "float32") -> NativeEncoder:
    """The encoder of a model that the kernels run; skips where these have no such numbers."""
    dtype, linear = ("float32", "int8") if number_format == "int8" else (number_format, "auto")
    if getattr(torch, dtype) not in LIBRARY.formats:
        pytest.skip(f"the kernels have no {dtype} here")
    encoder = load(path, Placement.choose("cpu", dtype), LoadOptions(linear=linear)).encoder  # type: ignore[arg-type]
    assert isinstance(encoder, NativeEncoder)
    return encoder


def text(length: int, first: int = 5) -> npt.NDArray[np.int32]:
    return np.arange(first, first + length, dtype=np.int32)


def run(encoder: NativeEncoder, texts: list[npt.NDArray[np.int32]], seconds: tuple[int, ...] = ()) -> Tensor:
    """Hidden states of texts, or of pairs whose second texts begin at `seconds`, in one batch."""
    types = encoder.token_types
    batch = RaggedBatch.pack(texts, encoder.device, encoder.uncounted, types=types, second_segments=seconds)
    with torch.inference_mode():
        return encoder(batch)


def one_by_one(encoder: NativeEncoder) -> None:
    """Makes each layer run in a call of its own."""
    native: NativeModel = encoder.model
    native._calls = [_Call.of([layer]) for layer in native.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_the_table_runs_whole_and_passes_the_gate(family: str, tmp_path: Path) -> None:
    """The gate compares it with transformers' own class; here a text has the same bits alone and among others, and
    layers that run in one call give the bits that they give one by one."""
    miniature.write(tmp_path, family)
    encoder = encoder_of(str(tmp_path))
    count = encoder.model.config.num_hidden_layers
    assert sum(encoder.model.calls) == count
    assert len(set(encoder.model.layers)) == (1 if family == "albert" else count)  # whose layers share their weights
    together = run(encoder, [text(length) for length in LENGTHS])
    assert torch.equal(together, torch.cat([run(encoder, [text(length)]) for length in LENGTHS]))
    one_by_one(encoder)
    assert encoder.model.calls == [1] * count
    assert torch.equal(run(encoder, [text(length) for length in LENGTHS]), together)


@pytest.mark.parametrize(
    ("name", "number_format"),
    [("tiny-bert", "float32"), ("tiny-bert", "int8"), ("tiny-gte", "bfloat16"), ("tiny-qwen3", "bfloat16")],
)
def test_layers_of_one_kind_give_the_bits_that_they_give_one_by_one(name: str, number_format: str) -> None:
    """In every number format."""
    encoder = encoder_of(random_model(name), number_format)
    assert encoder.model.calls == [3]
    together = run(encoder, [text(length) for length in LENGTHS])
    one_by_one(encoder)
    assert encoder.model.calls == [1, 1, 1]
    assert torch.equal(run(encoder, [text(length) for length in LENGTHS]), together)


def test_layers_that_attend_by_different_rules_run_apart() -> None:
    """ModernBERT's first layer sees the whole text, the others a window, and their angles differ."""
    model = load(random_model("tiny-modernbert"), CPU)
    assert model.encoder.model.calls == [1, 2]
    assert "3 layers run in 2 calls" in model.findings


@pytest.mark.parametrize(
    ("name", "number_format"),
    [("tiny-gemma2", "float32"), ("tiny-mistral", "bfloat16"), ("tiny-qwen3", "float32"), ("tiny-qwen3", "bfloat16")],
)
def test_pieces_give_the_bits_of_whole_texts(name: str, number_format: str) -> None:
    """As the gate cuts texts: keys lie in rows of other texts, in their caches and in a text's own, of this step and of
    the one before; with a window, and with layers that run apart."""
    encoder = encoder_of(random_model(name), number_format)
    texts = [text(length, 2 * length) for length in (1, 2, 9, 30, 45, 70, 299, 300, 301, 17, 17, 2)]
    batch = RaggedBatch.pack(texts, encoder.device, encoder.uncounted)
    with torch.inference_mode():
        assert torch.equal(run_in_pieces(encoder, batch), encoder(batch))
        one_by_one(encoder)
        assert torch.equal(run_in_pieces(encoder, batch), encoder(batch))


def test_a_cache_that_nobody_wrote_is_not_read() -> None:
    encoder, ids = encoder_of(random_model("tiny-qwen3")), text(40)
    fork = Piece(ids, 30, 40, SequenceCache(40, SequenceCache(30).slots(30)))
    with torch.inference_mode(), pytest.raises(IndexError):
        encoder(RaggedBatch.pack([], encoder.device, pieces=[fork]))


def test_a_model_that_errs_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate compares long texts too; then the layers run as they were written, and the log says so."""
    honest = NativeModel.forward

    def erring(self: NativeModel, batch: RaggedBatch) -> Tensor:
        return honest(self, batch) * (1.01 if max(batch.lengths) > 100 else 1.0)

    monkeypatch.setattr(NativeModel, "forward", erring)
    model = load(random_model("tiny-bert"), CPU)
    assert "native" not in model.linear
    assert not model.native_layers
    assert any(
        line.startswith("no whole layers by the processor's kernels: it does not run") for line in model.findings
    )


def reason(model: Model) -> str:
    """Why a model does not run by the kernels."""
    assert not model.native_layers
    [line] = [line for line in model.findings if line.startswith("no whole layers by the processor's kernels: ")]
    return line.partition(": ")[2]


def changed(folder: Path, **changes: object) -> str:
    """The path of a model with other values in its config."""
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    return str(folder)


def test_families_that_are_not_in_the_table_run_as_transformers_wrote_them(tmp_path: Path) -> None:
    """Granite names its parts as Llama does, and multiplies what it adds; Ministral 3 scales queries of long texts."""
    for family in ("granite", "ministral3"):
        miniature.write(tmp_path / family, family)
        assert reason(load(str(tmp_path / family), CPU)) == f"{family} is no family that they run"


def test_an_option_that_the_kernels_have_not_is_named(tmp_path: Path) -> None:
    miniature.write(tmp_path, "bert")
    assert reason(load(changed(tmp_path, hidden_act="mish"), CPU)) == "they have no activation MishActivation"


@pytest.mark.parametrize(
    ("part", "replacement", "said"),
    [
        ("attention.self.query", nn.Identity(), "attention.self.query is a Identity"),
        ("crossattention", nn.Linear(64, 64), "BertLayer has more parts: crossattention.weight"),
        ("output.LayerNorm", nn.LayerNorm(64, eps=1e-3), "its normalisations are of several kinds"),
        ("attention.output.LayerNorm", nn.RMSNorm(64, eps=1e-12), "its normalisations are of several kinds"),
        ("attention.self.key", nn.Linear(64, 100), "a linear layer of 64 x 100 is no multiple of 32"),
    ],
)
def test_layers_made_otherwise_are_refused(part: str, replacement: nn.Module, said: str) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=128, vocab_size=50
    )
    base = BertModel(config)
    base.encoder.layer[0].set_submodule(part, replacement)
    with pytest.raises(ModelRefused, match=said):
        NativeModel(base, LIBRARY)


def test_formats_that_the_kernels_have_not_are_left_alone() -> None:
    assert "float16" in reason(load(random_model("tiny-bert"), Placement.choose("cpu", "float16")))


def test_the_layers_of_the_class_take_no_memory_any_more() -> None:
    """Though a head of transformers' classes holds the model that it was cut from."""
    model = load(random_model("tiny-cross-encoder"), CPU)
    assert model.native_layers
    stand_ins = [part for head in model.heads.modules() for part in head.modules() if isinstance(part, EncoderStandIn)]
    written = [layer for stand_in in stand_ins for layer in FAMILIES["bert"].layers(stand_in.__dict__["_encoder"])]
    assert written
    assert sum(weight.numel() for layer in written for weight in layer.parameters()) == 0
