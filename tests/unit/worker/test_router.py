"""Routers: queries and documents go different ways, each equal to sentence-transformers, and compare in one job."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from shared.errors import InvalidInput, ModelRefused
from shared.jobs import Job
from shared.ragged import RaggedTokens
from shared.vectors import InputType, Layout, OutputKind, ScoringMethod
from support import asymmetric
from support.asymmetric import TEXTS, dense_model, encoder, inference_free, splade, static
from support.checked import checked
from support.native import LIBRARY
from support.references import near
from support.tiny import (
    CPU,
    DENSE,
    SPARSE,
    ask,
    dense_rows,
    encode,
    ids_of,
    random_ids,
    run,
    score,
    scores,
    sparse_rows,
    write_encoder,
    write_json,
)

QUERY, DOCUMENT, UNSPECIFIED = InputType.QUERY, InputType.DOCUMENT, InputType.UNSPECIFIED


def vectors(model: Model, kind: InputType, output: OutputKind = DENSE, texts: list[str] = TEXTS) -> np.ndarray:
    """Rows of texts of a kind, read as a frontend reads them."""
    dense = model.recipe.dense
    work = encode(output, input_type=kind, normalize=bool(dense and dense.normalize))
    result = ask(ModelEngine(model), work, ids_of(model.side(kind), texts))
    return dense_rows(result) if output is DENSE else sparse_rows(result)


def asymmetric_dense(folder: Path) -> list[Any]:
    """A table for queries, a Transformer for documents; both end with the modules behind the Router."""
    return [Router.for_query_document([static()], encoder(folder / "encoder")), Dense(64, 32), Normalize()]


def two_transformers(folder: Path) -> list[Any]:
    """Two architectures, and a Normalize in one route alone. Texts without a kind are queries."""
    query, document = encoder(folder / "q"), encoder(folder / "d", "tiny-modernbert")
    return [Router({"query": query, "document": [*document, Normalize()]}, default_route="query")]


def layers_behind_one(folder: Path) -> list[Any]:
    """The Router stands behind the Transformer that both sides share."""
    return [*encoder(folder / "encoder"), Router.for_query_document([Dense(64, 32)], [Dense(64, 32)])]


def mapped(folder: Path) -> list[Any]:
    """Routes with names of their own, which tasks and modalities are mapped to."""
    mappings: dict[Any, str] = {("query", "text"): "fast", ("document", None): "slow", (None, "image"): "fast"}
    routes = {"slow": encoder(folder / "encoder"), "fast": [static()]}
    return [Router(routes, route_mappings=mappings, default_route="slow")]


@pytest.mark.parametrize("make", [asymmetric_dense, two_transformers, layers_behind_one, mapped])
def test_every_kind_of_text_goes_its_way(tmp_path: Path, make: Callable[[Path], list[Any]]) -> None:
    """encode_query, encode_document, and encode by the default route; and scores over both."""
    torch.manual_seed(0)
    oracle = dense_model(tmp_path, *make(tmp_path))
    model = load(str(tmp_path / "saved"), CPU)
    queries, documents = oracle.encode_query(TEXTS), oracle.encode_document(TEXTS)
    near(vectors(model, QUERY), queries, 1e-5)
    near(vectors(model, DOCUMENT), documents, 1e-5)
    near(vectors(model, UNSPECIFIED), oracle.encode(TEXTS), 1e-5)
    assert np.abs(queries - documents).max() > 0.1
    expected = oracle.similarity(queries[:2], documents).numpy()
    assert model.query is not None
    texts = [*ids_of(model.query, TEXTS[:2]), *ids_of(model, TEXTS)]
    for width in (None, 3):  # all at once, and over several steps
        job = Job(id=1, work=score(ScoringMethod.DENSE, 2), tokens=RaggedTokens.of(texts))
        near(scores(run(ModelEngine(model), [job], width)[0], len(TEXTS)), expected, 1e-5)


def test_inference_free_splade(tmp_path: Path) -> None:
    """Queries by a table, documents by SPLADE, scores of a matrix and of pairs."""
    oracle = inference_free(tmp_path)
    model = load(str(tmp_path / "saved"), CPU)
    queries, documents = (asymmetric.sparse(by(TEXTS)) for by in (oracle.encode_query, oracle.encode_document))
    near(vectors(model, QUERY, SPARSE), queries, 1e-5)
    near(vectors(model, DOCUMENT, SPARSE), documents, 1e-5)
    near(vectors(model, UNSPECIFIED, SPARSE), asymmetric.sparse(oracle.encode(TEXTS)), 1e-5)
    assert model.query is not None
    texts = [*ids_of(model.query, TEXTS), *ids_of(model, TEXTS)]
    by_matrix = ask(ModelEngine(model), score(ScoringMethod.SPARSE, len(TEXTS)), texts)
    near(scores(by_matrix, len(TEXTS)), queries @ documents.T, 1e-5)
    by_pairs = ask(ModelEngine(model), score(ScoringMethod.SPARSE, len(TEXTS), Layout.PAIRS), texts)
    near(scores(by_pairs), (queries * documents).sum(axis=1, keepdims=True), 1e-5)


@pytest.mark.parametrize("count", [0, 1, 63])
def test_a_text_has_one_row_beside_texts_of_both_sides(tmp_path: Path, count: int) -> None:
    """A step runs queries and documents of many jobs; each row has the bits of the text alone, without the kernels
    within 1e-6."""
    torch.manual_seed(0)
    dense_model(tmp_path, *asymmetric_dense(tmp_path))
    engine = ModelEngine(load(str(tmp_path / "saved"), CPU))
    most = 1e-6 if engine.model.other_bits else 0
    assert bool(most) == bool(LIBRARY.missing)
    (text,), others = random_ids([23], seed=5), random_ids([1 + number * 7 % 90 for number in range(count)])

    def rows_of(texts: list[list[int]], kind: InputType) -> np.ndarray:
        """Those of the last text, which is of this kind; the others are of both kinds in turns."""
        kinds = [(QUERY, DOCUMENT)[number % 2] for number in range(len(texts) - 1)]
        jobs = [
            Job(id=number, work=encode(DENSE, input_type=side), tokens=RaggedTokens.of([ids]))
            for number, (ids, side) in enumerate(zip(texts, [*kinds, kind], strict=True))
        ]
        return dense_rows(run(engine, jobs)[-1])

    for kind in (QUERY, DOCUMENT):
        assert np.abs(rows_of([*others, text], kind) - rows_of([text], kind)).max() <= most


def test_the_old_name_and_file_are_read(tmp_path: Path) -> None:
    """Asym of sentence-transformers 2 to 4: config.json in place of router_config.json."""
    torch.manual_seed(0)
    oracle = dense_model(tmp_path, *layers_behind_one(tmp_path))
    folder = tmp_path / "saved"
    listed = json.loads((folder / "modules.json").read_text())
    listed[2]["type"] = "sentence_transformers.models.Asym"
    router = folder / listed[2]["path"]
    (router / "router_config.json").rename(router / "config.json")
    write_json(folder, modules=listed)
    model = load(str(folder), CPU)
    near(vectors(model, QUERY), oracle.encode_query(TEXTS), 1e-5)
    near(vectors(model, DOCUMENT), oracle.encode_document(TEXTS), 1e-5)


def test_a_router_whose_sides_are_the_same_is_a_plain_model(tmp_path: Path) -> None:
    """Nothing is loaded twice."""
    modules = encoder(tmp_path / "encoder")
    oracle = dense_model(tmp_path, Router.for_query_document(modules, modules))
    model = load(str(tmp_path / "saved"), CPU)
    assert model.query is None
    near(vectors(model, QUERY), oracle.encode_query(TEXTS), 1e-5)


def test_without_a_default_route_every_text_has_a_kind(tmp_path: Path) -> None:
    """As in sentence-transformers, which fails without one. The error names the field."""
    router = Router.for_query_document([static()], encoder(tmp_path / "encoder"), None, allow_empty_key=False)
    oracle = dense_model(tmp_path, router)
    with pytest.raises(ValueError, match="Could not determine route"):
        oracle.encode(TEXTS)
    model = load(str(tmp_path / "saved"), CPU)
    with pytest.raises(InvalidInput) as refused:
        vectors(model, UNSPECIFIED)
    assert refused.value.field == "input_type"
    near(vectors(model, QUERY), oracle.encode_query(TEXTS), 1e-5)


def test_the_card_tells_the_way_of_queries(tmp_path: Path) -> None:
    """What frontends need: lengths, the default, and the digest of a table that they look up by themselves."""
    inference_free(tmp_path)
    model = load(str(tmp_path / "saved"), CPU)
    route = card_of(model).query_route
    assert route is not None
    assert (route.family, route.default_input_type, route.vocabulary_size) == ("static", DOCUMENT, 1000)
    assert len(route.table_digest) == 64
    assert set(model.tokenizer_files) == {"tokenizer.json", "query_tokenizer.json", "query_table.f32"}
    dense_model(tmp_path / "dense", *asymmetric_dense(tmp_path / "dense"))
    other = card_of(load(str(tmp_path / "dense" / "saved"), CPU)).query_route
    assert other is not None
    assert (other.pooling, other.table_digest) == ("mean", "")


def test_the_table_of_queries_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """One weight of it changes the fingerprint of the whole model."""
    inference_free(tmp_path)
    before = load(str(tmp_path / "saved"), CPU)
    file = tmp_path / "saved" / "query_0_SparseStaticEmbedding" / "model.safetensors"
    tensors = load_file(file)
    tensors["weight"][5] += 1
    save_file(tensors, file)
    after = load(str(tmp_path / "saved"), CPU)
    assert before.fingerprint != after.fingerprint
    assert before.query is not None
    assert before.query.table != (after.query or after).table


STATIC = "sentence_transformers.models.StaticEmbedding"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"types": []}, "types must be an object"),
    ({"structure": {}}, "structure has no route"),
    ({"structure": {"query": ["a"], "doc": ["a"]}}, "no route for the task 'document'"),
    ({"structure": {"query": ["a"], "document": ["b"]}}, "'document' must be a list of names in types"),
    ({"types": {"a": "os.system"}}, "type os.system is not one of"),
    ({"types": {"a": "evil.StaticEmbedding"}}, "is code of its repository"),
    ({"types": {"a": "sentence_transformers.models.WeightedLayerPooling"}}, "WeightedLayerPooling is not one of"),
    ({"types": {"../../a": STATIC}, "structure": {"query": ["../../a"]}}, "leaves the repository"),
    ({"parameters": {"default_route": "other"}}, "'other' is not one of"),
    ({"parameters": {"route_mappings": {"('query', None)": 5}}}, "must name routes"),
]


@pytest.mark.parametrize(("changes", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_a_bad_router_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Before anything is loaded; nothing in a file is executed."""
    described = {"types": {"a": STATIC}, "structure": {"query": ["a"], "document": ["a"]}, "parameters": {}} | changes
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    write_json(tmp_path, modules=listed, router_config=described, a__tokenizer="{}")
    with pytest.raises(ModelRefused, match=why) as refused:
        load(str(tmp_path), CPU)
    assert "router_config.json" in str(refused.value)


def test_sides_that_do_not_compare_are_refused(tmp_path: Path) -> None:
    """Vectors of other widths, or of another kind."""
    dense_model(tmp_path, Router.for_query_document([static(32)], encoder(tmp_path / "encoder")))
    with pytest.raises(ModelRefused, match="32 dimensions of queries and 64 of documents"):
        load(str(tmp_path / "saved"), CPU)
    shutil.rmtree(tmp_path / "saved")
    dense_model(tmp_path, Router.for_query_document([static()], splade(tmp_path / "masked")))
    with pytest.raises(ModelRefused, match="vectors of different kinds"):
        load(str(tmp_path / "saved"), CPU)


def test_prompts_go_before_the_texts_of_each_side(tmp_path: Path) -> None:
    """And pooling leaves them out on the side whose Pooling says so."""
    write_encoder(tmp_path / "encoder", "tiny-bert")
    document = [Transformer(str(tmp_path / "encoder")), Pooling(64, "mean", include_prompt=False)]
    prompts = {"query": "w11 w12 ", "document": "w13 w14 "}
    dense_model(tmp_path, Router.for_query_document([static()], document), prompts=prompts)
    model = load(str(tmp_path / "saved"), CPU)
    card = card_of(model)
    assert (card.include_prompt, card.query_route and card.query_route.include_prompt) == (False, True)
    assert card.prompts == prompts


def test_check_prints_the_routes_and_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How queries go, and who looks them up."""
    inference_free(tmp_path)
    assert checked(tmp_path / "saved", "--step-tokens", "512") == 0
    printed = capsys.readouterr().out
    assert "query_route                default_input_type DOCUMENT, family static" in printed
    assert "table                      queries: 1000 x 1 float32, 0.0 MiB; frontends look them up" in printed
