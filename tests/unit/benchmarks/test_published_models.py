"""The published tables: files that both servers read, and answers beside the model's own code."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.load.target import texts_of
from benchmarks.machine import ROOT
from benchmarks.published import answers, models, servers
from benchmarks.published.rows import OURS, VLLM, Stream, rows
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.settings import WorkerSettings
from harness.random_models import shapes, synthetic
from shared.vectors import ScoringMethod
from support.published import CASE, ROW, TEXTS
from support.tiny import CPU, ask, embed, score, scores


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MODELS", tmp_path)
    monkeypatch.setattr(models, "MODELS", tmp_path)


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-qwen3", "tiny-electra", "tiny-xlm-roberta"])
def test_written_files_give_the_rows_of_the_models_own_code(model: str) -> None:
    """Mean, last token and first token; our loader reads the pooling from the files that vLLM reads it from."""
    workload = replace(TEXTS, model=f"random:{model}", requests=((5,), (9,), (30,)))
    row = replace(ROW, model=f"random:{model}", cases=(replace(CASE, stream=Stream(workload=workload, clients=1)),))
    folder = models.folder_of(row)
    texts = [text for request in texts_of(workload, 1) for text in request]
    ours = [vector[None] for vector in embed(folder, texts)]
    found = answers.agreement(OURS, ours, answers.reference(row, folder))
    assert found["least cosine without what all rows share"] > 0.99999


def test_a_written_colbert_gives_the_scores_of_the_models_own_code() -> None:
    """By our loader, with the file of the row; without them our worker would add markers and expand queries."""
    workload = replace(TEXTS, kind="rerank", requests=((5, 9, 30), (7, 12, 20)))
    row = replace(ROW, projected=48, cases=(replace(CASE, stream=Stream(workload=workload, clients=1)),))
    folder = models.folder_of(row)
    flags = [f"--model={folder}", *rows()["late-interaction"].ours]
    model = load(str(folder), CPU, LoadOptions(late=ROOT / WorkerSettings.read(flags).late_interaction))
    assert model.recipe.multi_vector is not None
    reader = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for (texts, _), expected in zip(answers.probes(row), answers.reference(row, folder), strict=True):
        ids = [reader.encode(text).ids for text in texts]
        result = ask(ModelEngine(model), score(ScoringMethod.LATE_INTERACTION, 1), ids)
        np.testing.assert_allclose(scores(result).T, expected, rtol=1e-5)


def test_written_files_of_gritlm_leave_the_instruction_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the model's own code does where it is told how long the instruction is."""
    tiny = ("tiny-mistral-bidirectional", shapes.HEADED["gritlm-0.3b"][1])
    monkeypatch.setitem(synthetic.HEADED, "gritlm-0.3b", tiny)
    workload = replace(TEXTS, model="random:GritLM-0.3B", requests=((45,), (50,)), instruction=21)
    row = replace(ROW, model=workload.model, cases=(replace(CASE, stream=Stream(workload=workload, clients=1)),))
    folder = models.folder_of(row)
    ours = [vector[None] for texts in texts_of(workload, 1) for vector in embed(folder, texts)]
    found = answers.agreement(OURS, ours, answers.reference(row, folder))
    assert found["least cosine without what all rows share"] > 0.99999


def test_answers_of_a_server_that_mixes_its_texts_up_do_not_agree() -> None:
    """Though all rows are so alike that cosines do not tell."""
    draw = np.random.default_rng(1)
    good = [(np.ones((1, 64)) + 0.01 * draw.normal(size=(1, 64))).astype(np.float32) for _ in range(4)]
    same = answers.agreement(OURS, good, good)
    mixed = answers.agreement(OURS, good[::-1], good)
    assert same == {"mean cosine": 1, "least cosine": 1, "least cosine without what all rows share": 1}
    assert mixed["least cosine"] > 0.999
    assert mixed["least cosine without what all rows share"] < 0.5


def test_we_must_agree_with_the_model_and_the_peer_is_told() -> None:
    """Nothing is measured of a wrong answer of ours; a peer's stands beside its speed."""
    good, bad = [np.array([[1, 0]], dtype=np.float32)], [np.array([[0.6, 0.8]], dtype=np.float32)]
    assert answers.agreement(VLLM, bad, good) == {"mean cosine": 0.6, "least cosine": 0.6}
    with pytest.raises(SystemExit, match="selvage: cosines to the model in float32"):
        answers.agreement(OURS, bad, good)
