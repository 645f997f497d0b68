"""modules.json is a program: an order, a repetition or an absence that the reference fails on is refused; all others
mean what they mean there."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from gpu_worker.model.loading import load
from shared.errors import ModelRefused
from support.tiny import CPU, assert_as_the_reference, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3 w4 w5 w6", "w9 w8 w20"]
FOLDERS = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
FOLDERS |= {"LayerNorm": "4_LayerNorm", "Dropout": "5_Dropout"}
IDENTITY = "torch.nn.modules.linear.Identity"
T, P, D, N, L = "Transformer", "Pooling", "Dense", "Normalize", "LayerNorm"


def entries(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """What modules.json has of them."""
    return [
        {"idx": place, "name": str(place), "path": FOLDERS[kind], "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]


def write(folder: Path, encoder: Path, kinds: Sequence[str], **files: Any) -> Path:
    """A repository with these modules in this order; `files` over those that it has."""
    shutil.copytree(encoder, folder)
    usual = {
        "modules": entries(kinds),
        "1_Pooling__config": {"pooling_mode": "cls", "embedding_dimension": 64},
        "2_Dense__config": {"in_features": 64, "out_features": 64, "activation_function": IDENTITY},
        "4_LayerNorm__config": {"dimension": 64},
    }
    write_json(folder, **(usual | files))
    generator = torch.Generator().manual_seed(1)
    linear = {"linear.weight": 0.2 * torch.randn(64, 64, generator=generator), "linear.bias": torch.ones(64)}
    save_file(linear, folder / "2_Dense" / "model.safetensors")
    norm = {"norm.weight": torch.rand(64, generator=generator), "norm.bias": torch.rand(64, generator=generator)}
    save_file(norm, folder / "4_LayerNorm" / "model.safetensors")
    return folder


def oracle(folder: Path) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


SERVED = [
    (T, P),
    (T, N, P),  # Normalize finds nothing to normalise yet
    (T, N, P, N),
    (T, P, N, D),
    (T, P, D, N),
    (T, P, N, N),
    (T, P, D, D),
    (T, P, L, D, N),
    (T, P, P),
    (T, P, D, P),  # the second Pooling begins anew
    (T, P, D, N, P, L),
    (T, P, "Dropout", D),
]


@pytest.mark.parametrize("kinds", SERVED, ids="-".join)
def test_an_order_means_what_it_means_to_the_reference(encoder: Path, tmp_path: Path, kinds: Sequence[str]) -> None:
    """Rows equal those of sentence-transformers, unit length or not."""
    folder = write(tmp_path / "model", encoder, kinds)
    assert_as_the_reference(folder, TEXTS)


REFUSED: dict[tuple[str, ...], str] = {
    (T,): "there is no Pooling",
    (T, N): "there is no Pooling",
    (T, D): "2_Dense reads sentence_embedding, which no module before it makes",
    (T, D, P): "2_Dense reads sentence_embedding, which no module before it makes",
    (T, L, P): "4_LayerNorm reads sentence_embedding",
    (T, "Dropout", P): "5_Dropout reads sentence_embedding",
    (P, T): "StaticEmbedding, and module 1 is Pooling",
    (N, T, P): "StaticEmbedding, and module 1 is Normalize",
    (P,): "the first module, and no other, must be one of Transformer, MLMTransformer, StaticEmbedding, and module 1",
    (): "holds no module",
}


@pytest.mark.parametrize("kinds", REFUSED, ids=lambda kinds: "-".join(kinds) or "nothing")
def test_an_order_that_the_reference_fails_on_is_refused(encoder: Path, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = write(tmp_path / "model", encoder, kinds)
    with pytest.raises((KeyError, AttributeError, ValueError)):
        oracle(folder)
    with pytest.raises(ModelRefused, match=REFUSED[kinds]) as raised:
        load(str(folder), CPU)
    assert "\n" not in str(raised.value)


def test_a_second_encoder_is_refused(encoder: Path, tmp_path: Path) -> None:
    """The reference would run it over the first one's tokens."""
    with pytest.raises(ModelRefused, match="the first module, and no other, must be one of"):
        load(str(write(tmp_path / "model", encoder, (T, T, P))), CPU)


NAMED: dict[str, tuple[str | int | None, str]] = {
    "of another": ("0", "two modules have the name '0'"),
    "none": (None, "name of a module None must be a text"),
    "empty": ("", "the name of Pooling is '', it must be a text without a dot"),
    "dotted": ("a.b", "the name of Pooling is 'a.b', it must be a text without a dot"),
}


@pytest.mark.parametrize("case", NAMED)
def test_names_tell_modules_apart(encoder: Path, tmp_path: Path, case: str) -> None:
    """Of two with one name the reference runs the second in the first one's place; without a name it fails."""
    name, said = NAMED[case]
    folder = write(tmp_path / "model", encoder, (T, P, N))
    modules = entries((T, P, N))
    modules[1] |= {"name": name}
    if name is None:
        del modules[1]["name"]
    write_json(folder, modules=modules)
    with pytest.raises((KeyError, AttributeError, TypeError)):
        oracle(folder)
    with pytest.raises(ModelRefused, match=said):
        load(str(folder), CPU)


MASK = {"name": "9", "path": "9_Mask", "type": "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask"}
ENDS: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "a mask in a dense model": ([T, P], {"modules+": MASK}, "MultiVectorMask needs a MultiVectorEncoder"),
    "unit token rows that are pooled": (
        [T, N, P],
        {"3_Normalize__config": {"module_input_name": "token_embeddings"}},
        "layers over token_embeddings need a MultiVectorEncoder",
    ),
    "a layer over the scores of a head": (
        [T, D],
        {
            "sentence_bert_config": {"transformer_task": "sequence-classification"},
            "2_Dense__config": {"in_features": 1, "out_features": 1, "module_input_name": "scores"},
        },
        "layers over the scores of the model's own head",
    ),
    "a layer behind the scores": (
        [T, P, D, N],
        {
            "2_Dense__config": {"in_features": 64, "out_features": 1}
            | {"module_input_name": "sentence_embedding", "module_output_name": "scores"}
        },
        "3_Normalize works on sentence_embedding behind the module that makes scores",
    ),
    "another output of the model": (
        [T, P],
        {
            "sentence_bert_config": {
                "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
                "module_output_name": "sentence_embedding",
            }
        },
        "modality_config: text must take last_hidden_state",
    ),
}


@pytest.mark.parametrize("named", ENDS)
def test_work_that_would_be_left_out_is_refused(encoder: Path, tmp_path: Path, named: str) -> None:
    """What the reference does with such modules is not done here, so they are not passed over."""
    kinds, files, said = ENDS[named]
    folder = write(tmp_path / "model", encoder, kinds, **{key: each for key, each in files.items() if "+" not in key})
    if "modules+" in files:
        modules = entries(kinds)
        write_json(folder, modules=[modules[0], files["modules+"], *modules[1:]])
    with pytest.raises(ModelRefused, match=said):
        load(str(folder), CPU)


@pytest.mark.parametrize(("kinds", "dimension"), [((T, P), 16), ((T, P, N), 16), ((T, P, D), 16), ((T, P), 999)])
def test_truncate_dim_cuts_vectors(encoder: Path, tmp_path: Path, kinds: Sequence[str], dimension: int) -> None:
    """As the reference cuts them: after all modules, and not brought to unit length again."""
    folder = write(tmp_path / "model", encoder, kinds, config_sentence_transformers={"truncate_dim": dimension})
    assert assert_as_the_reference(folder, TEXTS).shape == (2, min(64, dimension))


@pytest.mark.parametrize(("named", "said"), [("dot", "products with normalize false"), ("cosine", ""), (None, "")])
def test_another_similarity_is_told(encoder: Path, tmp_path: Path, named: str | None, said: str) -> None:
    """Vectors are the same; scores of them are cosines here."""
    folder = write(tmp_path / "model", encoder, (T, P), config_sentence_transformers={"similarity_fn_name": named})
    notice = load(str(folder), CPU).notice
    assert (said in notice) if said else not notice


def test_active_dimensions_of_a_sparse_model_are_refused(tmp_path: Path) -> None:
    """The reference keeps so many weights of each text."""
    write_encoder(tmp_path, "tiny-bert", "masked-lm")
    modules = [
        {"name": "0", "path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"},
        {"name": "1", "path": "1_S", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"},
    ]
    described = {"model_type": "SparseEncoder", "max_active_dims": 8}
    write_json(tmp_path, modules=modules, config_sentence_transformers=described, **{"1_S__config": {}})
    with pytest.raises(ModelRefused, match="max_active_dims is not supported: take it away, and ask with sparse_top_k"):
        load(str(tmp_path), CPU)
    write_json(tmp_path, config_sentence_transformers=described | {"max_active_dims": None})
    assert load(str(tmp_path), CPU).heads.sparse is not None
