"""The side of queries of ColQwen2: rows equal those of transformers' model and processor; what is not served."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from shared.errors import ModelRefused
from shared.jobs import Job
from shared.vectors import InputType, OutputKind, Task
from support.colqwen2 import QUERIES, WIDTH, expected_rows, write_colqwen2
from support.tiny import CPU, MULTI, encode, run, token_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(model: Model, queries: list[str]) -> list[np.ndarray]:
    """Rows of queries as a frontend and a worker make them."""
    reader = ModelTokenizer(model.tokenizer.content, card_of(model))
    batch = reader.texts(queries, "", Truncation(truncate=False), "texts[{}]", InputType.QUERY)
    job = Job(id=1, work=encode(MULTI, input_type=InputType.QUERY), tokens=batch.tokens)
    return token_rows(run(ModelEngine(model), [job])[0])


def assert_near(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert [each.shape for each in ours] == [each.shape for each in theirs]
    assert np.abs(np.concatenate(ours) - np.concatenate(theirs)).max() < 1e-5


@pytest.mark.parametrize(
    ("kind", "framed", "prefix"), [("qwen2_vl", False, ""), ("qwen2_5_vl", False, "Find: "), ("qwen2_vl", True, "")]
)
def test_rows_of_queries_are_the_models(kind: str, framed: bool, prefix: str, tmp_path: Path) -> None:
    """Every token counts: those of the prefix, those behind the query, and what the tokenizer puts around both."""
    folder = write_colqwen2(tmp_path, kind, framed=framed, prefix=prefix)
    model, expected = load(str(folder), CPU), expected_rows(folder, QUERIES, prefix)
    assert_near(rows(model, QUERIES), expected)
    assert len(expected[2]) > 10
    assert not [name for name, _ in model.encoder.model.named_parameters() if "vis" in name]


def test_the_card_says_that_queries_alone_are_served(tmp_path: Path) -> None:
    card = card_of(load(str(write_colqwen2(tmp_path)), CPU))
    assert card.message_templates == {"query": "Query: {text}" + "<|endoftext|>" * 10 + "\n"}
    assert (card.outputs, card.methods, card.tasks) == ((OutputKind.MULTI_VECTOR,), (), (Task.EMBED,))
    assert (card.multi_vector_dimensions, card.default_method, card.queries_only) == (WIDTH, None, True)
    for part in ("the text side of colqwen2 is served", "its documents are images, which are not served"):
        assert part in card.notice


def test_names_of_tensors_of_both_ages(tmp_path: Path) -> None:
    """Files of earlier versions of transformers have `model.` behind `vlm.`, and the head of the language model."""
    folder = write_colqwen2(tmp_path)
    first, file = rows(load(str(folder), CPU), QUERIES), folder / "model.safetensors"
    tensors = load_file(file)
    assert any(name.startswith("vlm.language_model.") for name in tensors)
    renamed = {name.replace("vlm.", "vlm.model."): tensor for name, tensor in tensors.items()}
    save_file(renamed | {"vlm.lm_head.weight": torch.ones(3, 64)}, file, {"format": "pt"})
    assert all((a == b).all() for a, b in zip(rows(load(str(folder), CPU), QUERIES), first, strict=True))
    save_file(renamed | {"vlm.model.language_model.layers.0.new.weight": torch.ones(3)}, file, {"format": "pt"})
    with pytest.raises(ModelRefused, match=r"takes no .*layers\.0\.new\.weight"):
        load(str(folder), CPU)
    del renamed["embedding_proj_layer.bias"]
    save_file(renamed, file, {"format": "pt"})
    with pytest.raises(ModelRefused, match=r"has no embedding_proj_layer\.bias"):
        load(str(folder), CPU)


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("config", {"vlm_config": {"model_type": "paligemma"}}, "paligemma is not one of qwen2_vl, qwen2_5_vl"),
        ("config", {"vlm_config": None}, "vlm_config None must be an object"),
        ("config", {"embedding_dim": 8}, "embedding_proj_layer.weight has the shape [16, 64], its place wants [8, 64]"),
        ("config", {"architectures": ["ColPaliForRetrieval"]}, "ColPaliForRetrieval has a head that is not served"),
        ("processor_config", {"query_prefix": 3}, "query_prefix 3 must be a text"),
        ("tokenizer_config", {"pad_token": None}, "its tokenizer has no pad_token"),
    ],
)
def test_other_folders_are_refused(file: str, changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    path = write_colqwen2(tmp_path) / f"{file}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelRefused, match=re.escape(reason)):
        load(str(tmp_path), CPU)


def test_settings_of_late_interaction_are_refused(tmp_path: Path) -> None:
    """What stands around a query is the processor's."""
    file = write_colqwen2(tmp_path / "model") / "late.json"
    file.write_text('{"query_prefix": "[Q] "}')
    with pytest.raises(ModelRefused, match="--late-interaction"):
        load(str(tmp_path / "model"), CPU, LoadOptions(late=file))
