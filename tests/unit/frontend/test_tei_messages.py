"""Messages of tei.v1: what a request asks for, what is refused and in which words; replies: tests/e2e."""

from array import array
from typing import Any

import numpy as np
import pytest
from fakes import card

from frontend_service.api.tei_v1 import messages as codec
from frontend_service.api.tei_v1.tei_servicers import tei_error
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import PromptChoice, ScoreNormalization, Truncation
from frontend_service.services.classify import Classified
from frontend_service.services.pipeline import Answer, ServedModel
from shared.errors import InputTooLong, InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask
from shared.jobs import JobResult, RaggedTokens
from shared.vectors import OutputKind, TruncationSide
from tei.v1 import tei_pb2 as pb

CUT = {"truncate": True, "truncation_direction": pb.TRUNCATION_DIRECTION_LEFT}
FROM_LEFT = Truncation(truncate=True, side=TruncationSide.LEFT)
QUERY, PROMPT = {"prompt_name": "query"}, PromptChoice(name="query")


@pytest.mark.parametrize(
    ("read", "message", "wanted"),
    [
        (
            codec.embed_sparse_request_from_pb,
            pb.EmbedSparseRequest(inputs="a", **CUT, **QUERY),
            {"outputs": (OutputKind.SPARSE,), "normalize": None, "prompt": PROMPT, "cut": FROM_LEFT},
        ),
        (
            codec.embed_all_request_from_pb,
            pb.EmbedAllRequest(inputs="a", **CUT, **QUERY),
            {"outputs": (OutputKind.MULTI_VECTOR,), "normalize": False, "prompt": PROMPT, "cut": FROM_LEFT},
        ),
        (codec.embed_request_from_pb, pb.EmbedRequest(inputs="a", dimensions=0), {"dimensions": 0}),
        (codec.predict_request_from_pb, pb.PredictRequest(inputs="a", **CUT), {"normalize": True, "cut": FROM_LEFT}),
        (
            codec.rerank_request_from_pb,
            pb.RerankRequest(query="a", texts=["b"], raw_scores=True, **CUT),
            {"normalization": ScoreNormalization.LOGITS, "query_cut": FROM_LEFT, "document_cut": FROM_LEFT},
        ),
        (codec.rerank_request_from_pb, pb.RerankRequest(texts=["a"]), {"queries": ("",)}),
        (codec.rerank_request_from_pb, pb.RerankRequest(query="q", texts=[""]), {"documents": ("",)}),
    ],
)
def test_what_a_request_asks_for(read: Any, message: Any, wanted: dict[str, Any]) -> None:
    request = read(message)
    assert {name: getattr(request, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("read", "message", "words", "field"),
    [
        (codec.embed_sparse_request_from_pb, pb.EmbedSparseRequest(), "empty", "texts[0]"),
        (codec.predict_pair_request_from_pb, pb.PredictPairRequest(inputs=[""]), "empty", "texts[0]"),
        (codec.predict_pair_request_from_pb, pb.PredictPairRequest(inputs=["", ""]), "empty", "texts[0]"),
        (codec.predict_pair_request_from_pb, pb.PredictPairRequest(), "must have 1 or 2", ""),
        (codec.predict_pair_request_from_pb, pb.PredictPairRequest(inputs="abc"), "must have 1 or 2", ""),
        (codec.rerank_request_from_pb, pb.RerankRequest(texts=["a", ""]), "empty", "documents[1]"),
    ],
)
def test_what_is_refused(read: Any, message: Any, words: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        read(message)
    assert not field or raised.value.field == field


def test_a_stream_of_texts_says_the_same_throughout() -> None:
    """Explicit `false` is not what is unset."""
    whole = codec.begin_rerank_request(pb.RerankStreamRequest(query="q", text="a"))
    assert not whole.HasField("truncate")
    codec.add_stream_text(whole, pb.RerankStreamRequest(query="q", text="a"))
    for other in ({"query": "r"}, {"query": "q", "truncate": False}):
        with pytest.raises(InvalidInput, match="message 1 is not that of the messages before it"):
            codec.add_stream_text(whole, pb.RerankStreamRequest(text="c", **other))


def test_labels_of_equal_scores_come_in_the_order_of_their_logits() -> None:
    scores, logits = (np.array(numbers, dtype="<f4").tobytes() for numbers in ((1, 1, 1), (20, 60, 40)))
    answer = Answer(
        model="fake",
        result=JobResult(scores=scores),
        ranked_by=logits,
        tokens=RaggedTokens.packed(array("i", range(4)), (4,)),
        truncated=(False,),
        token_counts=(4,),
        tokenize=0.0,
        transfer=0.0,
        answered=0.0,
    )
    request = codec.predict_request_from_pb(pb.PredictRequest(inputs="ab"))
    reply = codec.predict_response_to_pb(request, Classified(answer=answer, labels=("x", "y", "z")))
    assert [prediction.label for prediction in reply.predictions] == ["y", "z", "x"]


def test_info_tells_our_own_bounds() -> None:
    """What we do not have is unset."""
    texts: Any = None
    model = ServedModel(card=card(), texts=texts, queued_tokens=1000)
    info = codec.info_response_to_pb(model, Limits(), requests=7, threads=3)
    assert info == pb.InfoResponse(
        version=info.version,
        model_id="fake",
        model_dtype="float32",
        model_type=pb.MODEL_TYPE_EMBEDDING,
        max_concurrent_requests=7,
        tokenization_workers=3,
        max_input_length=10,
        max_batch_tokens=1000,
        max_client_batch_size=4096,
    )


INVALID, FAILED = "INVALID_ARGUMENT", "FAILED_PRECONDITION"
TOGETHER = "text_pairs[0] and its partner have 9 tokens together"


@pytest.mark.parametrize(
    ("method", "error", "field", "status"),
    [
        ("Embed/EmbedStream", InputTooLong("texts[7] has 9 tokens", field="texts[7]"), "inputs", INVALID),
        ("Predict/PredictPair", InputTooLong(TOGETHER, field="text_pairs[0]"), "inputs[1]", INVALID),
        ("Predict/PredictPairStream", InvalidInput("it is empty", field="texts[3]"), "inputs[0]", INVALID),
        ("Rerank/RerankStream", InvalidInput("it is empty", field="documents[3]"), "texts[3]", INVALID),
        ("Tokenize/Decode", InvalidInput("it has the id 99", field="tokenized[0]"), "ids", INVALID),
        ("Embed/Embed", UnsupportedTask("no prompt 'x'", field="prompt_name"), "prompt_name", INVALID),
        ("Embed/EmbedSparse", UnsupportedTask("no SPARSE output", field="outputs[0]"), "", FAILED),
        ("Embed/EmbedAll", UnsupportedTask("no output", field="outputs"), "", FAILED),
        ("Rerank/Rerank", UnsupportedTask("no method", field="method"), "", FAILED),
        ("Predict/Predict", UnsupportedTask("no task", field="model"), "", FAILED),
        ("Embed/Embed", UnknownModel("several", field="model"), "", FAILED),
        ("Embed/Embed", Overloaded("2 requests", retry_after=1.5), "", "RESOURCE_EXHAUSTED"),
    ],
)
def test_errors_have_the_words_of_the_contract(method: str, error: SelvageError, field: str, status: str) -> None:
    """Fields of its own messages; the reason stays ours."""
    begins = {INVALID: "Input validation error: ", FAILED: "", "RESOURCE_EXHAUSTED": "Model is overloaded: "}
    adapted = tei_error(f"/tei.v1.{method}", error)
    assert (adapted.message, adapted.field, adapted.status) == (begins[status] + error.message, field, status)
    assert (adapted.reason, adapted.retry_after) == (error.reason, error.retry_after)
