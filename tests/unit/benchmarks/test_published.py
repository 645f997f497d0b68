"""The published tables: what is asked, and answers beside the model's own code. No vLLM: our own engine."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.benchmark import OURS
from benchmarks.load.target import CHECKED, texts_of
from benchmarks.machine import ROOT
from benchmarks.published import model as files
from benchmarks.published import page
from benchmarks.published.rows import COMPARED, VLLM, Case, Row, rows
from benchmarks.workloads import INSTRUCTED, Workload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from harness.random_models import shapes, synthetic
from shared.vectors import ScoringMethod
from support.tiny import CPU, ask, embed, score, scores

TEXTS = Workload(name="texts", says="texts of 5 tokens", model="random:tiny-bert", requests=((5,), (9,), (30,)))


def row_of(workload: Workload, **options: int) -> Row:
    case = Case(name="alone", workload=workload, clients=1)
    row = Row(name="fake", says="texts", published="nowhere", cases=(case,), dtype="float32", max_tokens=64)
    return replace(row, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_every_text_has_its_tokens_and_a_server_has_seen_none_that_counts(row: Row) -> None:
    """By the tokenizer that both servers read. Texts differ between rounds, cases and loads, and from those that are
    sent before: vLLM keeps what it computed."""
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    for case in filter(None, (*row.cases, *(case.beside for case in row.cases))):
        if case.workload.model.startswith("random:"):
            workload = replace(case.workload, requests=case.workload.requests[:3])
            for texts, lengths in zip(texts_of(workload, 1), workload.requests, strict=True):
                assert [len(tokenizer.encode(text).ids) for text in texts] == list(lengths)
    seeds = [seed for number in range(3) for case in row.cases for seed in row.seeds(case, number)]
    assert len({*seeds, COMPARED, CHECKED}) == len(seeds) + 2


def test_prompts_of_token_rows_repeat_three_words_and_differ_between_requests() -> None:
    """A prefix cache would answer for prompts that it has seen. Prompts of a request have nothing in common, or the
    shorter ones are the beginnings of the longer ones."""
    apart, alike = (texts_of(case.workload, 1) for case in rows()["token-embeddings"].cases)
    for requests in (apart, alike):
        assert [len(texts) for texts in requests] == [16] * 64
        prompts = [text.split() for texts in requests for text in texts]
        assert all(words == (words[:3] * len(words))[: len(words)] for words in prompts)
    assert len({tuple(text.split()[:3]) for texts in apart for text in texts}) > 0.99 * 64 * 16
    assert all(longest.startswith(text) for *texts, longest in alike for text in texts)
    assert len({texts[-1] for texts in alike}) == 64


def test_prompts_of_the_burst_have_an_instruction_of_21_tokens() -> None:
    """With [CLS]; the reference leaves out as many as our loader does, by the mark in the text."""
    (case,) = rows()["instruct-burst"].cases
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    prompts = [text for (text,) in texts_of(case.workload, 1)]
    befores = {text.partition(INSTRUCTED)[0] + INSTRUCTED for text in prompts}
    assert [len(tokenizer.encode(before).ids) - 1 for before in befores] == [21]
    assert len(set(prompts)) == len(prompts) == 500


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-qwen3", "tiny-electra", "GritLM-0.3B"])
def test_written_files_give_the_rows_of_the_models_own_code(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean, last token, first token, and a mean without an instruction; our loader reads the pooling from the files
    that vLLM reads it from."""
    tiny = ("tiny-mistral-bidirectional", shapes.HEADED["gritlm-0.3b"][1])
    monkeypatch.setitem(synthetic.HEADED, "gritlm-0.3b", tiny)
    workload = replace(TEXTS, model=f"random:{model}")
    if "GritLM" in model:
        workload = replace(workload, requests=((45,), (50,)), instruction=21)
    row = row_of(workload)
    folder = files.written(row, tmp_path / "model")
    ours = [vector[None] for texts in texts_of(workload, COMPARED) for vector in embed(folder, texts)]
    agreement = files.agreement(OURS, ours, files.reference(row, folder))
    assert agreement["least cosine without what all rows share"] > 0.99999


def test_the_reference_of_minilm_reads_long_texts_whole(tmp_path: Path) -> None:
    """As our loader does; the file of its tokenizer would cut them at 128 tokens."""
    row = rows()["clients"]
    folder = files.written(row, tmp_path)
    (probe, *_), reference = files.probes(row), files.reference(row, folder)
    assert files.agreement(OURS, [embed(folder, probe[0])], reference[:1])["least cosine"] > 0.99999


def test_a_written_colbert_gives_the_scores_of_the_models_own_code(tmp_path: Path) -> None:
    """By our loader, with the file of the row; without it our worker would add markers and expand queries."""
    row = row_of(replace(TEXTS, kind="rerank", requests=((5, 9, 30), (7, 12, 20))), projected=48)
    folder = files.written(row, tmp_path / "model")
    model = load(str(folder), CPU, LoadOptions(late=ROOT / rows()["late-interaction"].ours["late-interaction"]))
    assert model.recipe.multi_vector is not None
    reader = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for (texts, _), expected in zip(files.probes(row), files.reference(row, folder), strict=True):
        ids = [reader.encode(text).ids for text in texts]
        result = ask(ModelEngine(model), score(ScoringMethod.LATE_INTERACTION, 1), ids)
        np.testing.assert_allclose(scores(result).T, expected, rtol=1e-5)


def test_answers_of_a_server_that_mixes_its_texts_up_do_not_agree() -> None:
    """Though all rows are so alike that cosines do not tell. Nothing is measured of a wrong answer of ours; a peer's
    stands beside its speed."""
    draw = np.random.default_rng(1)
    good = [(np.ones((1, 64)) + 0.01 * draw.normal(size=(1, 64))).astype(np.float32) for _ in range(4)]
    same, mixed = files.agreement(OURS, good, good), files.agreement(OURS, good[::-1], good)
    assert same == {"mean cosine": 1, "least cosine": 1, "least cosine without what all rows share": 1}
    assert mixed["least cosine"] > 0.999
    assert mixed["least cosine without what all rows share"] < 0.5
    right, wrong = [np.array([[1, 0]], dtype=np.float32)], [np.array([[0.6, 0.8]], dtype=np.float32)]
    assert files.agreement(VLLM, wrong, right) == {"mean cosine": 0.6, "least cosine": 0.6}
    with pytest.raises(SystemExit, match="selvage: cosines to the model in float32"):
        files.agreement(OURS, wrong, right)


def test_answers_are_read_in_the_order_of_the_texts() -> None:
    """Rows of token vectors and scores too, which come by rank; other counts of tokens are an error."""
    entries = [{"index": 1, "embedding": "AACAPwAAAEA="}, {"index": 0, "embedding": "AABAQAAAgEA="}]
    reply = {"data": entries, "usage": {"prompt_tokens": 5}}
    assert [row.tolist() for row in files.rows_of("dense", reply, [3, 2])] == [[[3, 4]], [[1, 2]]]
    with pytest.raises(ValueError, match="have 6 tokens, and the server counted 5"):
        files.rows_of("dense", reply, [3, 3])
    data = {"data": [{"index": 0, "data": "AACAPwAAAEAAAEBAAACAQA=="}], "usage": {"prompt_tokens": 2}}
    assert files.rows_of("tokens", data, [2])[0].tolist() == [[1, 2], [3, 4]]
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.25}]
    assert files.rows_of("rerank", {"results": results}, [1, 2, 2])[0].tolist() == [[0.25, 0.5]]


@pytest.mark.parametrize(
    ("name", "figure", "best"), [("dense", "requests/s", "9"), ("short-beside-long", "p99 ms", "4")]
)
def test_a_line_compares_with_the_best_setting_of_vllm(
    name: str, figure: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most requests a second, or the least latency."""
    spreads = {figure: {"median": 1.0, "lower": 1.0, "upper": 1.0} for figure in ("requests/s", "p50 ms", "p99 ms")}
    values = {OURS: 8.0, VLLM: 4.0, f"{VLLM}, others": 9.0}
    sides = {side: spreads | {figure: {"median": value}} for side, value in values.items()}
    over = {side: spreads | {figure: {"median": 2.0, "lower": 2.0, "upper": 2.0}} for side in values if side != OURS}
    result = {
        "says": "texts.",
        "agreement": {side: {files.REFERENCE: {"least cosine": 0.999}} for side in values},
        "cases": [{"case": "alone", "ours": OURS, "sides": sides, "ours_over": over}],
        "machine": {"cores": 4, "processor": "Zen 5", "commit": "abc"},
        "settings": {"threads": 2, "rounds": 3, "seconds": 9.0, "requests": {"alone": 0}, "flags": {VLLM: "--a"}},
        "peers": {"vllm": {"vllm": "1.2"}},
    }
    monkeypatch.setattr(page, "read", lambda wanted: result if wanted == f"published/{name}" else {})
    line = page.summary().splitlines()[2]
    assert line.startswith(f"| {name}, alone | 8 {figure} | {best} {figure} | 2 |")
    assert "| 0.99900 / 0.99900 |" in line
