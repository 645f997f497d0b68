"""Repositories with an adapter for each task: read by their own files, each task's rows as peft gives them, and refused
where something is missing or of another kind."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository.adapters import NamedAdapter
from gpu_worker.startup.piece_limits import WHOLE, adapters_by_fingerprint
from shared.errors import ModelRefused
from shared.jobs import Job, RaggedTokens
from support.adapted import write_adapter
from support.jina_v5 import (
    NANO,
    PROMPTS,
    SMALL,
    TASKS,
    change_adapter,
    change_config,
    own_rows,
    write_v5,
)
from support.tiny import CPU, DENSE, dense_rows, encode, ids_of, run, write_encoder, write_json

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4 w3 w2", "w11"]
NAMES = {SMALL: "jina-embeddings-v5-text-small", NANO: "jina-embeddings-v5-text-nano"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A repository of each base, by shape."""
    root = tmp_path_factory.mktemp("models")
    return {shape: write_v5(root / name, shape) for shape, name in NAMES.items()}


@pytest.fixture
def repository(folders: dict[str, Path], tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(folders[SMALL], tmp_path / "copy"))


def loaded(folder: Path, **options: Any) -> Model:
    return load(str(folder), CPU, LoadOptions(**options))


def rows_of_tasks(model: Model, texts: list[str]) -> dict[str, np.ndarray]:
    """Unit rows of texts by task, those of the base under "", all in one step."""
    engine = ModelEngine(model)
    engine.cut_texts(WHOLE, adapters_by_fingerprint(model, WHOLE))
    prints = {"": ""} | {next(iter(of_task.task_models)): of_task.fingerprint for of_task in model.adapters}
    ids = RaggedTokens.of(ids_of(model, texts))
    jobs = [
        Job(id=number, work=encode(DENSE), tokens=ids, model=print_) for number, print_ in enumerate(prints.values())
    ]
    return dict(zip(prints, map(dense_rows, run(engine, jobs)), strict=True))


@pytest.mark.parametrize("shape", NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_rows_of_each_task_are_peft_s(folders: dict[str, Path], shape: str, prompt: str) -> None:
    """Of a causal base and of one that is not, and the base's rows are none of them."""
    folder = folders[shape]
    rows = rows_of_tasks(loaded(folder), [PROMPTS[prompt] + text for text in TEXTS])
    for task in TASKS:
        assert np.abs(rows[task] - own_rows(folder, task, TEXTS, prompt).numpy()).max() < 1e-5
        others = [rows[other] for other in rows if other != task]
        assert min(np.abs(rows[task] - other).max() for other in others) > 1e-2


def test_tasks_are_models_of_their_own(folders: dict[str, Path]) -> None:
    """Each has a name, a fingerprint and the model's prompts; the model says which there are."""
    model = loaded(folders[NANO])
    card, cards = card_of(model), [card_of(of_task) for of_task in model.adapters]
    assert card.task_models == {task: f"{NAMES[NANO]}-{task}" for task in TASKS}
    assert [entry.task_models for entry in cards] == [{task: name} for task, name in card.task_models.items()]
    assert [entry.id for entry in cards] == [*card.task_models.values()]
    assert len({card.fingerprint, *(entry.fingerprint for entry in cards)}) == len(TASKS) + 1
    assert all((entry.prompts, entry.default_prompt_name) == (PROMPTS, "document") for entry in [card, *cards])
    assert (card.family, card.pooling, card.normalizes, card.max_tokens) == ("eurobert", "lasttoken", True, 640)
    assert card_of(loaded(folders[SMALL], max_tokens=64).adapters[0]).max_tokens == 64


def test_names_of_the_user_name_the_tasks_too(folders: dict[str, Path]) -> None:
    model = loaded(folders[SMALL], names=("jina", "embedder"))
    assert card_of(model).task_models["retrieval"] == "jina-retrieval"
    assert model.adapters[0].names == ("jina-retrieval", "embedder-retrieval")


def test_code_of_the_repository_does_not_run(folders: dict[str, Path]) -> None:
    """Not even where the user allows it: its files raise, and the rows are the same."""
    allowed = loaded(folders[SMALL], trust_remote_code=True)
    rows, plain = (rows_of_tasks(model, TEXTS)["clustering"] for model in (allowed, loaded(folders[SMALL])))
    assert np.array_equal(rows, plain)


def test_an_adapter_of_the_user_serves_beside_those_of_tasks(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[SMALL]
    write_adapter(tmp_path / "mine", folder.with_name(f"{folder.name}-base"), seed=9, target_modules=["q_proj"])
    change = json.loads((tmp_path / "mine" / "adapter_config.json").read_text())
    change["base_model_name_or_path"] = f"jinaai/{folder.name}"
    write_json(tmp_path / "mine", adapter_config=change)
    model = loaded(folder, adapters=[NamedAdapter(name="mine", folder=str(tmp_path / "mine"))])
    assert [of_task.task_models for of_task in model.adapters][-1] == {}
    assert [of_task.names[0] for of_task in model.adapters][-1] == "mine"
    assert "mine" not in card_of(model).task_models.values()
    taken = NamedAdapter(name=f"{folder.name}-retrieval", folder=str(tmp_path / "mine"))
    with pytest.raises(ModelRefused, match="--adapter jina-embeddings-v5-text-small-retrieval: the adapter of a task"):
        loaded(folder, adapters=[taken])


def test_fingerprints_change_with_the_adapter_of_their_task_alone(folders: dict[str, Path], repository: Path) -> None:
    before = loaded(repository)
    change_adapter(repository, "retrieval", lora_alpha=5)
    after = loaded(repository)
    prints = [(one.fingerprint == two.fingerprint) for one, two in zip(before.adapters, after.adapters, strict=True)]
    assert prints == [False, True, True, True]
    assert before.fingerprint == after.fingerprint


def change_tensor(folder: Path, task: str, part: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Changes the first tensor of a task's adapter with a part of its name; None takes it away."""
    file = folder / "adapters" / task / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if part in name)
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else tensors | {name: changed}, file, metadata={"format": "pt"})


CLUSTERING = "the adapter of the task clustering: "


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: change_config(folder, task_names=None), "task_names None must be a list"),
        (lambda folder: change_config(folder, task_names=[]), "task_names [] must name tasks, each of them once"),
        (lambda folder: change_config(folder, task_names=["a", "a"]), "task_names ['a', 'a'] must name tasks"),
        (lambda folder: change_config(folder, task_names=["../x"]), "task_names '../x' must be the name of a folder"),
        (
            lambda folder: change_config(folder, task_names=[*TASKS, "code"]),
            "adapters/code/adapter_config.json is missing; task_names of config.json names the task",
        ),
        (lambda folder: change_config(folder, hidden_size=None), "config.json: hidden_size None must be a whole"),
        (lambda folder: change_config(folder, is_decoder=False), "the encoder: without them it would compute"),
        (lambda folder: (folder / "modules.json").unlink(), "modules.json is missing"),
        (
            lambda folder: write_json(folder, modules=[{"type": "custom_st.Other", "path": ""}]),
            "jina_embeddings_v5 is served with one module, custom_st.Transformer at its root",
        ),
        (
            lambda folder: shutil.copytree(folder / "adapters" / "retrieval", folder, dirs_exist_ok=True),
            "an adapter beside those of tasks is not served",
        ),
        (
            lambda folder: (folder / "adapters" / "clustering" / "adapter_model.safetensors").unlink(),
            f"{CLUSTERING}FOLDER/adapters/clustering/adapter_model.safetensors is missing",
        ),
        (
            lambda folder: change_adapter(folder, "clustering", use_dora=True),
            f"{CLUSTERING}FOLDER/adapters/clustering/adapter_config.json: use_dora = True: only LoRA",
        ),
        (lambda folder: change_adapter(folder, "clustering", peft_type="IA3"), "peft_type IA3 is not served, LORA is"),
        (lambda folder: change_adapter(folder, "clustering", r=3), f"{CLUSTERING}FOLDER/adapters/clustering/"),
        (
            lambda folder: change_tensor(folder, "clustering", "lora_B", lambda tensor: None),
            "clustering/adapter_model.safetensors: base_model.model.layers.0",
        ),
        (
            lambda folder: change_tensor(folder, "clustering", "lora_A", lambda tensor: tensor * float("nan")),
            "holds numbers that are not finite",
        ),
    ],
)
def test_what_is_missing_or_of_another_kind_is_refused(
    repository: Path, change: Callable[[Path], Any], why: str
) -> None:
    """In one line, which names the file of the repository and the task."""
    change(repository)
    with pytest.raises(ModelRefused, match=re.escape(why.replace("FOLDER", str(repository)))) as refused:
        loaded(repository)
    assert "selvage-" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_int8_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelRefused, match="an adapter for each task goes with exact linear layers alone: no --dtype"):
        loaded(folders[SMALL], linear="int8")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"architectures": ["XLMRobertaLoRA"]}, "jina-embeddings-v3: the adapters of its tasks lie in its weights"),
        ({"architectures": ["JinaEmbeddingsV4Model"]}, "jina-embeddings-v4: it reads images"),
        ({"model_type": "jina_embeddings_v5_omni"}, "jina-embeddings-v5-omni: it reads images and sounds"),
    ],
)
def test_relatives_are_refused_by_their_names(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    """And say which models are served instead."""
    write_json(tmp_path, config=config)
    with pytest.raises(ModelRefused, match=why + ".*; jinaai/jina-embeddings-v5-text-small and -nano have adapters"):
        loaded(tmp_path)


def test_jina_v3_in_transformers_form_says_that_its_adapters_are_not_served(tmp_path: Path) -> None:
    """They change embeddings, which `--adapter` refuses by name, too."""
    write_encoder(tmp_path, "tiny-jina-v3")
    for name in ("retrieval_query", "text_matching"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name, adapter_config={"peft_type": "LORA"})
    model = loaded(tmp_path)
    assert "without the adapters of its tasks, which change embeddings: retrieval_query, text_matching" in model.notice
    assert card_of(model).task_models == {}
