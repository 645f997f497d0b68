"""Messages of tei.v1 <-> domain types: what a request asks for, what a reply says, and what a model is told to be."""

from array import array
from typing import Any

import numpy as np
import pytest
from fakes import card

from frontend_service.api.tei_v1 import messages as codec
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import PromptChoice, ScoreNormalization, Truncation
from frontend_service.services.classify import Classified
from frontend_service.services.pipeline import Answer, ServedModel, Timing
from shared.errors import InvalidInput
from shared.jobs import JobResult, RaggedTokens, Rows, SparseRows
from shared.vectors import OutputKind, ScoringMethod, Task, TruncationSide
from tei.v1 import tei_pb2 as pb

LEFT = pb.TRUNCATION_DIRECTION_LEFT
CUT = {"truncate": True, "truncation_direction": LEFT}
FROM_LEFT = Truncation(truncate=True, side=TruncationSide.LEFT)
QUERY = {"prompt_name": "query"}


def floats(*numbers: float) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


def answer(*lengths: int, logits: bytes = b"", **result: Any) -> Answer:
    """Of texts with so many tokens. `logits`: what the scores were made of; none: they are as the model gave them."""
    return Answer(
        model="fake",
        result=JobResult(**result),
        ranked_by=logits or result.get("scores", b""),
        tokens=RaggedTokens.packed(array("i", range(sum(lengths))), lengths),
        truncated=(False,) * len(lengths),
        token_counts=lengths,
        tokenize=0.0,
        transfer=0.0,
        answered=0.0,
    )


@pytest.mark.parametrize(
    ("read", "message", "wanted"),
    [
        (
            codec.embed_request_from_pb,
            pb.EmbedRequest(inputs="b c"),
            {
                "texts": ("b c",),
                "outputs": (OutputKind.DENSE,),
                "normalize": True,
                "dimensions": None,
                "prompt": PromptChoice(),
                "cut": Truncation(truncate=None, side=TruncationSide.RIGHT),
            },
        ),
        (
            codec.embed_request_from_pb,
            pb.EmbedRequest(inputs="a", normalize=False, dimensions=0, **CUT, **QUERY),
            {"normalize": False, "dimensions": 0, "prompt": PromptChoice(name="query"), "cut": FROM_LEFT},
        ),
        (
            codec.embed_sparse_request_from_pb,
            pb.EmbedSparseRequest(inputs="a", **CUT, **QUERY),
            {
                "outputs": (OutputKind.SPARSE,),
                "normalize": None,
                "prompt": PromptChoice(name="query"),
                "cut": FROM_LEFT,
            },
        ),
        (
            codec.embed_all_request_from_pb,
            pb.EmbedAllRequest(inputs="a", **CUT, **QUERY),
            {"outputs": (OutputKind.MULTI_VECTOR,), "normalize": False, "cut": FROM_LEFT},
        ),
        (
            codec.predict_request_from_pb,
            pb.PredictRequest(inputs="a", raw_scores=True, **CUT),
            {"normalize": False, "cut": FROM_LEFT},
        ),
        (
            codec.predict_pair_request_from_pb,
            pb.PredictPairRequest(inputs=["a", "b"], **CUT),
            {"normalize": True, "cut": FROM_LEFT, "texts": ("a",), "pairs": ("b",)},
        ),
        (
            codec.rerank_request_from_pb,
            pb.RerankRequest(query="a", texts=["b"], raw_scores=True, **CUT),
            {"normalization": ScoreNormalization.LOGITS, "query_cut": FROM_LEFT, "document_cut": FROM_LEFT},
        ),
        (
            codec.rerank_request_from_pb,
            pb.RerankRequest(texts=["a"]),
            {"queries": ("",), "normalization": ScoreNormalization.ACTIVATED},
        ),
        (codec.rerank_request_from_pb, pb.RerankRequest(query="q", texts=[""]), {"documents": ("",)}),
    ],
)
def test_what_a_request_asks_for(read: Any, message: Any, wanted: dict[str, Any]) -> None:
    """Unset: unit length, the model's own prompt, all dimensions. Token vectors are as the model gives them."""
    request = read(message)
    assert {name: getattr(request, name) for name in wanted} == wanted


def test_vectors_of_a_text() -> None:
    """Token rows may be fewer than tokens; a sparse vector may have none."""
    request = codec.embed_request_from_pb(pb.EmbedRequest(inputs="übc"))
    reply = codec.embed_response_to_pb(request, answer(5, dense=Rows(dimensions=4, data=floats(0, 1, 2, 3))))
    assert list(reply.embeddings) == [0, 1, 2, 3]
    assert (reply.metadata.compute_chars, reply.metadata.compute_tokens) == (3, 5)
    for pairs in ({}, {0: 0.5, 20_000: 2.0}):
        indices = np.array([*pairs], dtype="<i4").tobytes()
        sparse = SparseRows(lengths=(len(pairs),), indices=indices, values=floats(*pairs.values()))
        request = codec.embed_sparse_request_from_pb(pb.EmbedSparseRequest(inputs="a"))
        told = codec.embed_sparse_response_to_pb(request, answer(3, sparse=sparse))
        assert {each.index: each.value for each in told.sparse_embeddings} == pairs
    request = codec.embed_all_request_from_pb(pb.EmbedAllRequest(inputs="a"))
    result = {"tokens": Rows(dimensions=2, data=floats(*range(6))), "row_lengths": (3,)}
    every = codec.embed_all_response_to_pb(request, answer(4, **result))
    assert [list(each.embeddings) for each in every.token_embeddings] == [[0, 1], [2, 3], [4, 5]]
    assert every.metadata.compute_tokens == 4


@pytest.mark.parametrize(
    ("scores", "logits", "labels"),
    [((0.25, 0.5, 0.25), (), "yxz"), ((1, 1, 1), (20, 60, 40), "yzx")],
    ids=["by scores", "by logits where scores are equal"],
)
def test_labels_come_best_first(scores: tuple[float, ...], logits: tuple[float, ...], labels: str) -> None:
    request = codec.predict_request_from_pb(pb.PredictRequest(inputs="ab"))
    made = answer(4, scores=floats(*scores), logits=floats(*logits))
    reply = codec.predict_response_to_pb(request, Classified(answer=made, labels=("x", "y", "z")))
    assert [each.label for each in reply.predictions] == [*labels]
    assert [each.score for each in reply.predictions] == sorted(scores, reverse=True)
    assert reply.metadata == pb.Metadata(compute_chars=2, compute_tokens=4)


def test_a_stream_of_texts_becomes_one_rerank() -> None:
    messages = [
        pb.RerankStreamRequest(query="q", text="a", truncate=True, raw_scores=True, return_text=True),
        pb.RerankStreamRequest(query="q", text="b", truncate=True),
    ]
    whole = codec.begin_rerank_request(messages[0])
    for message in messages:
        codec.add_stream_text(whole, message)
    assert whole == pb.RerankRequest(query="q", texts=["a", "b"], truncate=True, raw_scores=True, return_text=True)
    for other in ({"query": "r", "truncate": True}, {"query": "q"}):
        with pytest.raises(InvalidInput, match="message 2 is not that of the messages before it"):
            codec.add_stream_text(whole, pb.RerankStreamRequest(text="c", **other))


@pytest.mark.parametrize("text", ["", "plain", "é w1", "日本語 and 🙂 end", "🙂"])
def test_places_in_bytes(text: str) -> None:
    assert list(codec.byte_offsets(text)) == [len(text[:place].encode()) for place in range(len(text) + 1)]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, pb.MODEL_TYPE_EMBEDDING),
        ({"tasks": (Task.CLASSIFY,), "methods": ()}, pb.MODEL_TYPE_CLASSIFIER),
        ({"tasks": (Task.CLASSIFY, Task.RERANK), "methods": (ScoringMethod.CROSS_ENCODER,)}, pb.MODEL_TYPE_RERANKER),
    ],
)
def test_info_tells_our_own_bounds(changes: dict[str, Any], kind: pb.ModelType) -> None:
    """And what the model is for; what we do not have is unset."""
    texts: Any = None
    model = ServedModel(card=card(**changes), texts=texts, queued_tokens=1000)
    told = codec.info_response_to_pb(model, Limits(), requests=7, threads=3)
    assert told == pb.InfoResponse(
        version=told.version,
        model_id="fake",
        model_dtype="float32",
        model_type=kind,
        max_concurrent_requests=7,
        tokenization_workers=3,
        max_input_length=10,
        max_batch_tokens=1000,
        max_client_batch_size=4096,
    )


def test_times_are_told_twice() -> None:
    """In nanoseconds in a reply, and in milliseconds beside it."""
    metadata = codec.compute_metadata("abc", tokens=5)
    timing = Timing(tokenize=0.001, queue=0.002, compute=0.003, transfer=0.004, postprocess=0.005)
    codec.put_times(metadata, timing, 0.02)
    told = {"total": 20, "tokenization": 1, "queue": 2, "inference": 3}
    names = {f"{name}_time_ns": number * 1_000_000 for name, number in told.items()}
    assert metadata == pb.Metadata(compute_chars=3, compute_tokens=5, **names)  # type: ignore[arg-type]
    headers = {f"x-{name}-time": str(number) for name, number in told.items()}
    headers |= {"x-compute-type": "gpu", "x-compute-time": "20"}
    headers |= {"x-compute-characters": "3", "x-compute-tokens": "5"}
    assert dict(codec.metadata_headers(metadata, "cuda:0")) == headers
