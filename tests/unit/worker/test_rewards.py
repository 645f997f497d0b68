"""Rewards of steps: scores at the tokens of one id."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from shared.errors import InvalidInput, UnsupportedTask
from shared.jobs import Classify
from support.random_models import random_model
from support.tiny import CPU, ask, random_ids, scores, write_encoder

MARK = 7


def write_rewards(folder: Path) -> tuple[torch.nn.Module, torch.nn.Sequential]:
    """A process reward model as Qwen2.5-Math-PRM is on disk: Qwen2, and two layers over every token."""
    write_encoder(folder, "tiny-qwen2")
    encoder = AutoModel.from_pretrained(folder, attn_implementation="eager")
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    weights = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights |= {f"score.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"}
    config |= {"architectures": ["Qwen2ForProcessRewardModel"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    return encoder, head


def rewards_alone(encoder: torch.nn.Module, head: torch.nn.Sequential, texts: list[list[int]]) -> np.ndarray:
    """The two layers over the marked tokens of each text, by transformers' encoder, one text at a time."""
    rows = []
    with torch.inference_mode():
        for text in texts:
            hidden = encoder(torch.tensor([text])).last_hidden_state[0]
            rows.append(head(hidden[torch.tensor(text) == MARK]))
    return torch.cat(rows).numpy()


Rewarding = tuple[torch.nn.Module, torch.nn.Sequential, ModelEngine]


@pytest.fixture(scope="module")
def rewarding(tmp_path_factory: pytest.TempPathFactory) -> Rewarding:
    """transformers' encoder, the two layers, and the engine that read both from one folder."""
    folder = tmp_path_factory.mktemp("rewards")
    return *write_rewards(folder), ModelEngine(load(str(folder), CPU))


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Two texts with marks, one without, one that is nothing but a mark."""
    first, second, third = random_ids([9, 30, 4])
    first[3] = first[8] = second[29] = MARK
    return [first, second, third, [MARK]]


def test_rewards_equal_the_two_layers_on_the_marked_tokens(rewarding: Rewarding, texts: list[list[int]]) -> None:
    """Against transformers' Qwen2 and the layers written out, one text at a time."""
    encoder, head, engine = rewarding
    result = ask(engine, Classify(tokens=True, token_id=MARK), texts)
    assert result.row_lengths == (2, 1, 0, 1)
    rows = rewards_alone(encoder, head, texts)
    assert np.abs(scores(result, 2) - rows).max() <= 2e-5 * max(1.0, np.abs(rows).max())


def test_without_an_id_every_token_is_scored(rewarding: Rewarding, texts: list[list[int]]) -> None:
    *_, engine = rewarding
    every = ask(engine, Classify(tokens=True), texts)
    marked = ask(engine, Classify(tokens=True, token_id=MARK), texts)
    assert every.row_lengths == tuple(map(len, texts))
    is_mark = np.concatenate([np.array(text) == MARK for text in texts])
    assert np.allclose(scores(every, 2)[is_mark], scores(marked, 2), atol=1e-6)


def test_what_such_a_model_cannot_do_is_refused(rewarding: Rewarding, texts: list[list[int]]) -> None:
    *_, engine = rewarding
    with pytest.raises(UnsupportedTask, match="classifies no texts"):
        ask(engine, Classify(), texts)
    with pytest.raises(InvalidInput, match="needs tokens"):
        ask(ModelEngine(load(random_model("tiny-classifier"), CPU)), Classify(token_id=MARK), texts)
