"""Late interaction in its three forms on disk: rows of given token ids equal those of the oracle's own modules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from shared.vectors import InputType
from support.tiny import CPU, MULTI, ask, encode, random_ids, split_weights, token_rows, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = random_ids([5, 1, 40, 12], seed=7)
TOKENS = "token_embeddings"


def assert_rows_equal(folder: Path, oracle: MultiVectorEncoder, width: int) -> None:
    """Of all tokens: which of them are scored is another matter than the projection."""
    model = load(str(folder), CPU)
    assert model.heads.dense is None
    assert model.heads.multi_vector is not None
    assert model.heads.multi_vector.width == width
    ours = token_rows(ask(ModelEngine(model), encode(MULTI, input_type=InputType.QUERY), IDS))
    for ids, rows in zip(IDS, ours, strict=True):
        features: Any = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
        with torch.inference_mode():
            for module in oracle:
                features = module(features)
        expected = nn.functional.normalize(features[TOKENS][0], dim=1)
        assert rows.shape == expected.shape
        assert np.abs(rows - expected.numpy()).max() < 2e-5


LAYERS: dict[str, list[dict[str, Any]]] = {
    "bias": [{"in_features": 64, "out_features": 32, "bias": True}],
    "projected residual": [{"in_features": 64, "out_features": 24, "bias": False, "use_residual": True}],
    "several": [
        {"in_features": 64, "out_features": 128, "bias": False, "use_residual": True},
        {"in_features": 128, "out_features": 48, "bias": False},
    ],
}


def test_unit_length_between_layers_is_a_layer(encoder: Path, tmp_path: Path) -> None:
    """Only a Normalize at the end is what a request may switch off."""
    unit = Normalize(module_input_name=TOKENS)
    plain: dict[str, Any] = {"activation_function": nn.Identity(), "module_input_name": TOKENS}
    chain = [Dense(64, 64, **plain), unit, Dense(64, 48, bias=True, **plain), MultiVectorMask()]
    oracle = MultiVectorEncoder(modules=[Transformer(str(encoder)), *chain], device="cpu")
    oracle.save(str(tmp_path), create_model_card=False)
    assert_rows_equal(tmp_path, oracle, 48)


@pytest.mark.parametrize("layers", LAYERS)
def test_the_form_of_pylate(tmp_path: Path, layers: str) -> None:
    """With `model_type`, and as versions before it wrote the files."""
    write_encoder(tmp_path, "tiny-bert")
    generator = torch.Generator().manual_seed(6)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, layer in enumerate(LAYERS[layers], 1):
        folder = f"{number}_Dense"
        modules.append({"idx": number, "name": str(number), "path": folder, "type": "pylate.models.Dense.Dense"})
        config = layer | {"activation_function": "torch.nn.modules.linear.Identity"}
        write_json(tmp_path, **{f"{folder}__config": {"use_residual": False} | config})
        shape = (layer["out_features"], layer["in_features"])
        tensors = {"linear.weight": 0.2 * torch.randn(shape, generator=generator)}
        if layer["bias"]:
            tensors["linear.bias"] = torch.randn(shape[0], generator=generator)
        if layer.get("use_residual") and shape[0] != shape[1]:
            tensors["residual.weight"] = 0.2 * torch.randn(shape, generator=generator)
        save_file(tensors, tmp_path / folder / "model.safetensors")
    described = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32}
    described |= {"model_type": "ColBERT"} if layers == "several" else {}
    described |= {"document_length": 180, "do_query_expansion": True, "attend_to_expansion_tokens": False}
    write_json(tmp_path, modules=modules, config_sentence_transformers=described)
    oracle = MultiVectorEncoder(str(tmp_path), device="cpu")
    assert_rows_equal(tmp_path, oracle, LAYERS[layers][-1]["out_features"])


@pytest.mark.parametrize("suffix", ["", ".bin"], ids=["one file", "pickles"])
def test_the_form_of_stanford(tmp_path: Path, suffix: str) -> None:
    """The encoder's weights under `bert.`, the projection at the root; in one file, or in several with an index."""
    write_encoder(tmp_path, "tiny-bert")
    weights = {f"bert.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights["linear.weight"] = 0.2 * torch.randn(48, 64, generator=torch.Generator().manual_seed(8))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    write_json(tmp_path, config=config)
    (tmp_path / "artifact.metadata").write_text(json.dumps({"query_maxlen": 32, "doc_maxlen": 220, "dim": 48}))
    oracle = MultiVectorEncoder(str(tmp_path), device="cpu")
    if suffix:
        split_weights(tmp_path, suffix)
    assert_rows_equal(tmp_path, oracle, 48)
