"""An adapter in a model's folder changes its rows: it is refused, wherever it lies, and never left out in silence."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from gpu_worker.repository import contents
from support.adapted import BASE, merge, write_adapter
from support.breakages import refusal
from support.tiny import embed, write_json

TEXTS = ["w1 w2 w3"]
WITH_PEFT = [-0.19110, 0.90974, -0.54061, 0.47170]
"""The first numbers that sentence-transformers 6.2 with peft 0.21.2 gives for the base with its adapter."""
BASE_ALONE = [-1.40402, 0.63671, -0.52082, 0.45222]
"""Those of the base, which were served for the same folder."""


@pytest.fixture
def both(encoder: Path, tmp_path: Path) -> Path:
    """A model with its weights, and an adapter beside them."""
    folder = tmp_path / "both"
    shutil.copytree(encoder, folder)
    return write_adapter(folder)


def test_an_adapter_beside_weights_is_refused(both: Path) -> None:
    """By its file, with what to do."""
    said = refusal(both)
    assert "adapter_config.json: an adapter (LORA) lies beside the model" in said
    assert "merge_and_unload" in said


def test_the_reference_refuses_it_or_gives_the_rows_of_both(encoder: Path, both: Path) -> None:
    """As peft is installed or not; the base alone is what it never gives."""
    write_adapter(both, str(encoder))
    if find_spec("peft") is None:
        with pytest.raises(ImportError, match="PEFT"):
            SentenceTransformer(str(both), device="cpu")
    else:
        given = SentenceTransformer(str(both), device="cpu").encode(TEXTS)
        assert np.abs(given[0, :4] - WITH_PEFT).max() < 1e-4


def test_an_adapter_alone_is_refused_with_its_base(tmp_path: Path) -> None:
    """Not with the config.json that such a folder never has."""
    said = refusal(write_adapter(tmp_path / "alone"))
    assert f"holds an adapter alone (LORA, of {BASE}) and no config.json" in said


@pytest.mark.parametrize("beside", [True, False], ids=["beside weights", "alone"])
def test_an_adapter_in_the_folder_of_a_module_is_refused(both: Path, tmp_path: Path, beside: bool) -> None:
    """As sentence-transformers saves a model that peft trained; the encoder may have a folder of its own."""
    folder = tmp_path / "saved"
    folder.mkdir()
    both.rename(folder / "0_Transformer")
    if not beside:
        (folder / "0_Transformer" / "config.json").unlink()
    modules = [
        {"name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    write_json(folder, modules=modules, **{"1_Pooling__config": {"pooling_mode": "mean", "embedding_dimension": 64}})
    assert ("adapter (LORA) lies beside" if beside else f"adapter alone (LORA, of {BASE})") in refusal(folder)


def test_the_remedy_gives_the_rows_of_both(encoder: Path, tmp_path: Path) -> None:
    """The merged folder is served with the rows that peft gives; the base's are far from them."""
    merged = tmp_path / "merged"
    shutil.copytree(encoder, merged)
    merge(merged)
    assert np.abs(embed(merged, TEXTS)[0, :4] - WITH_PEFT).max() < 1e-4
    assert np.abs(embed(encoder, TEXTS)[0, :4] - BASE_ALONE).max() < 1e-4
    assert np.abs(embed(merged, TEXTS) - embed(encoder, TEXTS)).max() > 1.8


def test_weights_of_an_adapter_stand_for_no_pickle(tmp_path: Path) -> None:
    """A model saved as a pickle beside adapter_model.safetensors: the pickle is what is read, so it counts."""
    files = [tmp_path / name for name in ("pytorch_model.bin", "adapter_model.safetensors", "a/pytorch_model.bin")]
    assert contents.pickles_beside_safetensors(files) == set()
    files += [tmp_path / "a" / "model-00001-of-00002.safetensors"]
    assert contents.pickles_beside_safetensors(files) == {tmp_path / "a" / "pytorch_model.bin"}


def test_quantised_weights_are_refused_by_name(encoder: Path, tmp_path: Path) -> None:
    """What a package of their own unpacks would depend on that package."""
    shutil.copytree(encoder, tmp_path / "q")
    config = json.loads((encoder / "config.json").read_text())
    write_json(tmp_path / "q", config=config | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert "config.json: quantization_config (gptq)" in refusal(tmp_path / "q")
