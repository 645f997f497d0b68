"""A Router is inference-free SPLADE: a table for queries, SPLADE for documents, both equal to sentence-transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder import SparseEncoder

from gpu_worker import check
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.job import LOOKED_UP
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.repository import static_format
from shared.errors import InputTooLong, InvalidInput, ModelRefused
from shared.jobs import Encode, Job, JobResult, RaggedTokens, Score
from shared.vectors import InputType, Layout, ScoringMethod
from support import asymmetric
from support.asymmetric import ROWS, TEXTS, dense_model, encoder, inference_free, saved, sparse_static, splade, static
from support.references import near
from support.tiny import CPU, SPARSE, ask, encode, ids_of, run, score, scores, sparse_rows, write_json

QUERY, DOCUMENT, UNSPECIFIED = InputType.QUERY, InputType.DOCUMENT, InputType.UNSPECIFIED
TABLE = "query_0_SparseStaticEmbedding"
"""The folder of the table."""


def query_ids(model: Model, texts: list[str] = TEXTS) -> list[list[int]]:
    """Token ids of queries, as a frontend reads them."""
    assert model.queries is not None
    return ids_of(model.queries, texts)


def vectors(model: Model, kind: InputType) -> np.ndarray:
    """Sparse vectors of the texts as texts of a kind, which a worker makes."""
    assert model.queries is not None
    ids = query_ids(model) if (kind or model.queries.default) is QUERY else ids_of(model, TEXTS)
    return sparse_rows(ask(ModelEngine(model), encode(SPARSE, input_type=kind), ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inference-free SPLADE on disk, not to be changed."""
    inference_free(path := tmp_path_factory.mktemp("router"))
    return path / "saved"


@pytest.fixture(scope="module")
def oracle(folder: Path) -> SparseEncoder:
    return SparseEncoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder), CPU)


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder."""
    return shutil.copytree(folder, tmp_path / "saved")


def saved_router(folder: Path, **options: Any) -> SparseEncoder:
    """Inference-free SPLADE, whose Router has these options."""
    router = Router({"query": [sparse_static()], "document": splade(folder / "encoder")}, **options)
    return saved(SparseEncoder(modules=[router], device="cpu", similarity_fn_name="dot"), folder)


@pytest.mark.parametrize("layout", [Layout.MATRIX, Layout.PAIRS])
@pytest.mark.parametrize("width", [None, 3])
def test_scores_compare_a_table_with_splade(
    model: Model, oracle: SparseEncoder, layout: Layout, width: int | None
) -> None:
    """Of a matrix and of pairs, in one step or in several."""
    queries, documents = (asymmetric.sparse(by(TEXTS)) for by in (oracle.encode_query, oracle.encode_document))
    pairs = layout is Layout.PAIRS
    count = len(TEXTS) if pairs else 2
    tokens = RaggedTokens.of([*query_ids(model, TEXTS[:count]), *ids_of(model, TEXTS)])
    job = Job(id=1, work=score(ScoringMethod.SPARSE, count, layout), tokens=tokens, prompt_lengths=(1,) * len(tokens))
    result = run(ModelEngine(model), [job], width)[0]
    expected = (queries * documents).sum(axis=1, keepdims=True) if pairs else queries[:2] @ documents.T
    near(scores(result, 1 if pairs else len(TEXTS)), expected, 1e-5)


def test_a_step_has_jobs_of_both_kinds(model: Model, oracle: SparseEncoder) -> None:
    """Nothing is computed for queries, which are one cheap unit, beside documents."""
    engine = ModelEngine(model)
    jobs = [
        Job(id=1, work=encode(SPARSE, input_type=QUERY), tokens=RaggedTokens.of(query_ids(model))),
        Job(id=2, work=encode(SPARSE, input_type=DOCUMENT), tokens=RaggedTokens.of(ids_of(model, TEXTS))),
    ]
    opened = engine.open(jobs[0])
    cost = 1 + jobs[0].tokens.total // LOOKED_UP
    assert (list(opened.costs), len(opened.selection(0, 1).numbers)) == ([cost], 0)
    query, document = run(engine, jobs)
    near(sparse_rows(query), asymmetric.sparse(oracle.encode_query(TEXTS)), 1e-5)
    near(sparse_rows(document), asymmetric.sparse(oracle.encode_document(TEXTS)), 1e-5)


def test_without_a_named_route_the_first_one_is_the_default(tmp_path: Path) -> None:
    oracle = saved_router(tmp_path)
    model = load(str(tmp_path / "saved"), CPU)
    assert model.queries is not None
    assert model.queries.default is QUERY
    near(vectors(model, UNSPECIFIED), asymmetric.sparse(oracle.encode(TEXTS)), 1e-5)


def test_without_a_default_route_every_text_has_a_kind(tmp_path: Path) -> None:
    """As in sentence-transformers, which fails without one. The error names the field."""
    oracle = saved_router(tmp_path, allow_empty_key=False)
    with pytest.raises(ValueError, match="Could not determine route"):
        oracle.encode(TEXTS)
    model = load(str(tmp_path / "saved"), CPU)
    with pytest.raises(InvalidInput) as refused:
        vectors(model, UNSPECIFIED)
    assert refused.value.field == "input_type"
    near(vectors(model, QUERY), asymmetric.sparse(oracle.encode_query(TEXTS)), 1e-5)


def test_queries_have_limits_of_their_own(model: Model) -> None:
    """In an Encode and in a Score: a length, and the ids that the table has."""
    assert model.queries is not None
    engine, longest = ModelEngine(model), model.queries.max_tokens
    works: list[Encode | Score] = [encode(SPARSE, input_type=QUERY), score(ScoringMethod.SPARSE, 1)]
    for work in works:
        for query, error in (([5] * (longest + 1), InputTooLong), ([ROWS], InvalidInput), ([-1], InvalidInput)):
            with pytest.raises(error):
                engine.open(Job(id=1, work=work, tokens=RaggedTokens.of([query, [5]])))
        (answer,) = run(engine, [Job(id=1, work=work, tokens=RaggedTokens.of([[5] * longest, [5]]))])
        assert isinstance(answer, JobResult)


def test_a_table_that_is_too_large_for_frontends_stays(
    folder: Path, model: Model, oracle: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker looks queries up then, and frontends know it; else they look them up by themselves."""
    assert set(model.tokenizer_files) == {"tokenizer.json", "query_tokenizer.json", "query_table.f32"}
    monkeypatch.setattr(static_format, "TABLE_WEIGHTS", ROWS - 1)
    large = load(str(folder), CPU)
    route = card_of(large).query_route
    assert route is not None
    assert route.table_digest == ""
    assert set(large.tokenizer_files) == {"tokenizer.json", "query_tokenizer.json"}
    near(vectors(large, QUERY), asymmetric.sparse(oracle.encode_query(TEXTS)), 1e-5)


def test_the_table_of_queries_is_part_of_the_fingerprint(model: Model, changed: Path) -> None:
    """One weight of it changes the fingerprint of the whole model."""
    file = changed / TABLE / "model.safetensors"
    tensors = load_file(file)
    tensors["weight"][5] += 1
    save_file(tensors, file)
    assert load(str(changed), CPU).fingerprint != model.fingerprint


PACKAGE = "sentence_transformers.models."
ROUTES = {"query": ["a"], "document": ["b", "c"]}
TYPES = {"a": f"{PACKAGE}SparseStaticEmbedding", "b": f"{PACKAGE}MLMTransformer", "c": f"{PACKAGE}SpladePooling"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"types": []}, "types [] must be an object"),
    ({"structure": {}}, "structure has the routes none: a Router is served only as inference-free SPLADE"),
    ({"structure": ROUTES | {"image": ["a"]}}, "structure has the routes document, image, query: a Router is served"),
    ({"structure": ROUTES | {"document": ["d"]}}, "'document' must be a list of names in types"),
    ({"types": TYPES | {"a": "os.system"}}, "type os.system is not one of"),
    ({"types": TYPES | {"a": "evil.SparseStaticEmbedding"}}, "is code of its repository"),
    ({"types": TYPES | {"b": f"{PACKAGE}WeightedLayerPooling"}}, "WeightedLayerPooling is not one of"),
    ({"types": TYPES | {"../../a": TYPES["a"]}, "structure": ROUTES | {"query": ["../../a"]}}, "leaves the repository"),
    ({"parameters": {"default_route": "other"}}, "default_route other is not one of query, document"),
    ({"parameters": {"route_mappings": {"('query', None)": "query"}}}, "route_mappings is not supported"),
    (
        {"structure": ROUTES | {"query": ["b", "c"]}},
        "queries go through MLMTransformer and SpladePooling, documents through MLMTransformer and SpladePooling: "
        "a Router is served only as inference-free SPLADE",
    ),
    (
        {"structure": ROUTES | {"document": ["a"]}},
        "queries go through SparseStaticEmbedding, documents through SparseStaticEmbedding: a Router is served only",
    ),
]


@pytest.mark.parametrize(("changes", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_another_router_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Before anything is loaded; nothing in a file is executed."""
    described = {"types": TYPES, "structure": ROUTES, "parameters": {}} | changes
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}Router"}]
    write_json(tmp_path, modules=listed, router_config=described)
    with pytest.raises(ModelRefused) as refused:
        load(str(tmp_path), CPU)
    assert why in str(refused.value)
    assert str(tmp_path / "router_config.json") in str(refused.value)


def test_two_models_behind_a_router_are_refused(tmp_path: Path) -> None:
    """Dense ones, under the old name too, and a Router behind other modules. The line says what is served."""
    dense_model(tmp_path, Router.for_query_document([static()], encoder(tmp_path / "encoder")))
    folder = tmp_path / "saved"
    why = "queries go through StaticEmbedding, documents through Transformer and Pooling: a Router is served only as"
    with pytest.raises(ModelRefused, match=why):
        load(str(folder), CPU)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["type"] = f"{PACKAGE}Asym"
    write_json(folder, modules=listed)
    with pytest.raises(ModelRefused, match=why):
        load(str(folder), CPU)
    listed.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{PACKAGE}Normalize"})
    write_json(folder, modules=listed)
    with pytest.raises(ModelRefused, match=r"modules\.json: other modules than its Asym: a Router is served only as"):
        load(str(folder), CPU)


BAD_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"other": asymmetric.numbers(ROWS)}, "has no weight"),
    ({"weight": asymmetric.numbers(ROWS, 2)}, "has the shape"),
    ({"weight": asymmetric.numbers(ROWS) / 0}, "not finite"),
    ({"weight": -asymmetric.numbers(ROWS).abs()}, "negative"),
    ({"weight": asymmetric.numbers(ROWS - 1).abs()}, "999 weights for 1000 tokens"),
]


@pytest.mark.parametrize(("tensors", "why"), BAD_TABLES, ids=[why for _, why in BAD_TABLES])
def test_a_bad_table_is_refused_by_name(changed: Path, tensors: dict[str, Any], why: str) -> None:
    """The line says where, and what is wrong with it."""
    save_file(tensors, changed / TABLE / "model.safetensors")
    with pytest.raises(ModelRefused, match=why) as refused:
        load(str(changed), CPU)
    assert str(changed / TABLE) in str(refused.value)


def test_a_table_elsewhere_or_alone_is_refused(changed: Path, tmp_path: Path) -> None:
    """A path to weights, and a table without SPLADE."""
    write_json(changed / TABLE, config={"frozen": True, "path": "idf.json"})
    with pytest.raises(ModelRefused, match=r"config\.json has path, which is not supported"):
        load(str(changed), CPU)
    saved(SparseEncoder(modules=[sparse_static()], device="cpu"), tmp_path / "alone")
    with pytest.raises(ModelRefused, match=r"modules\.json: SparseStaticEmbedding: only a Router may have it"):
        load(str(tmp_path / "alone" / "saved"), CPU)


def test_vectors_of_other_ids_are_refused(changed: Path) -> None:
    folder = changed / TABLE
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    last = max(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    del tokenizer["model"]["vocab"][last]
    write_json(folder, tokenizer=tokenizer)
    save_file({"weight": asymmetric.numbers(ROWS - 1).abs()}, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match="weights for 999 token ids"):
        load(str(changed), CPU)


def test_check_prints_the_table(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    check._print_tables(model)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == f"table queries: {ROWS} float32, 0.0 MiB; frontends look them up"
