"""Messages of tei.v1 <-> domain types."""

from array import array
from typing import Any

import numpy as np
import pytest
from fakes import card

from frontend_service.answer import Answer, Timing
from frontend_service.classification import Classified
from frontend_service.doors.tei_v1.codec import embedding, fields, info, prediction, ranking, tokenization
from frontend_service.doors.tei_v1.codec.errors import told
from frontend_service.limits import Limits
from frontend_service.models import Description
from frontend_service.requests import Cut, PromptChoice
from shared.errors import InputTooLong, InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask
from shared.jobs import JobResult, Rows, SparseRows
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind, ScoringMethod, Task, TruncationSide
from tei.v1 import tei_pb2 as pb

LEFT, RIGHT = pb.TRUNCATION_DIRECTION_LEFT, pb.TRUNCATION_DIRECTION_RIGHT


def answer(*lengths: int, **result: Any) -> Answer:
    """Of texts with so many tokens."""
    return Answer(
        model="fake",
        result=JobResult(**result),
        tokens=RaggedTokens.packed(array("i", range(sum(lengths))), lengths),
        truncated=(False,) * len(lengths),
        tokenize=0.0,
        transfer=0.0,
        answered=0.0,
    )


def test_what_is_unset_is_as_the_contract_says() -> None:
    """Unit length, the end is cut if any, the model's own prompt, all dimensions."""
    request = embedding.dense_request([pb.EmbedRequest(inputs="a"), pb.EmbedRequest(inputs="b c")])
    assert (request.texts, request.outputs) == (("a", "b c"), (OutputKind.DENSE,))
    assert (request.normalize, request.dimensions, request.prompt) == (True, None, PromptChoice())
    assert request.cut == Cut(truncate=False, side=TruncationSide.RIGHT)


def test_every_option_of_an_embed_counts() -> None:
    """False and zero are said, not left out."""
    message = pb.EmbedRequest(
        inputs="a", truncate=True, normalize=False, truncation_direction=LEFT, prompt_name="query", dimensions=0
    )
    request = embedding.dense_request([message])
    assert (request.normalize, request.dimensions, request.prompt) == (False, 0, PromptChoice(name="query"))
    assert request.cut == Cut(truncate=True, side=TruncationSide.LEFT)


@pytest.mark.parametrize(
    ("read", "kind", "output", "normalize"),
    [
        (embedding.sparse_request, pb.EmbedSparseRequest, OutputKind.SPARSE, None),
        (embedding.all_request, pb.EmbedAllRequest, OutputKind.MULTI_VECTOR, False),
    ],
)
def test_options_of_the_other_outputs(read: Any, kind: Any, output: OutputKind, normalize: bool | None) -> None:
    """The same but for length; token vectors are as the model gives them."""
    request = read([kind(inputs="a", truncate=True, truncation_direction=LEFT, prompt_name="query")])
    assert (request.outputs, request.normalize, request.prompt) == ((output,), normalize, PromptChoice(name="query"))
    assert request.cut == Cut(truncate=True, side=TruncationSide.LEFT)


def test_messages_come_together_where_all_but_the_text_is_equal() -> None:
    """An option that is said to be its default is not one that is left out."""
    one = pb.EmbedRequest(inputs="a", truncate=True)
    assert fields.options(one) == fields.options(pb.EmbedRequest(inputs="other", truncate=True))
    others = [
        pb.EmbedRequest(inputs="a"),
        pb.EmbedRequest(inputs="a", truncate=True, normalize=False),
        pb.EmbedRequest(inputs="a", truncate=True, prompt_name=""),
        pb.EmbedRequest(inputs="a", truncate=True, truncation_direction=LEFT),
        pb.EmbedRequest(inputs="a", truncate=True, dimensions=4),
    ]
    assert len({fields.options(each) for each in (one, *others)}) == 6
    pairs = [pb.PredictPairRequest(inputs=["a"]), pb.PredictPairRequest(inputs=["a", "b"])]
    assert prediction.pair_options(pairs[0]) != prediction.pair_options(pairs[1])
    ids = [pb.DecodeRequest(ids=[1]), pb.DecodeRequest(ids=[2, 3])]
    assert fields.options(ids[0]) == fields.options(ids[1])


@pytest.mark.parametrize(
    ("read", "messages"),
    [
        (embedding.dense_request, [pb.EmbedRequest(inputs="a"), pb.EmbedRequest()]),
        (embedding.sparse_request, [pb.EmbedSparseRequest(inputs="a"), pb.EmbedSparseRequest()]),
        (embedding.all_request, [pb.EmbedAllRequest(inputs="a"), pb.EmbedAllRequest()]),
        (prediction.predict_request, [pb.PredictRequest(inputs="a"), pb.PredictRequest()]),
        (prediction.pair_request, [pb.PredictPairRequest(inputs=["a"]), pb.PredictPairRequest(inputs=[""])]),
        (prediction.pair_request, [pb.PredictPairRequest(inputs=["a", ""]), pb.PredictPairRequest(inputs=["", ""])]),
        (tokenization.encode_request, [pb.EncodeRequest(inputs="a"), pb.EncodeRequest()]),
    ],
)
def test_an_empty_text_is_refused_by_its_place(read: Any, messages: Any) -> None:
    """Its neighbours are not to blame."""
    with pytest.raises(InvalidInput) as raised:
        read(messages)
    assert raised.value.field == "texts[1]"


def test_no_ids_are_refused_by_their_place() -> None:
    """As an empty text is."""
    with pytest.raises(InvalidInput) as raised:
        tokenization.decode_request([pb.DecodeRequest(ids=[1]), pb.DecodeRequest()])
    assert raised.value.field == "tokenized[1]"


@pytest.mark.parametrize("text", ["", "plain", "é w1", "日本語 and 🙂 end", "🙂"])
def test_places_in_bytes(text: str) -> None:
    """Of every character, and of the end."""
    assert list(tokenization.byte_places(text)) == [len(text[:place].encode()) for place in range(len(text) + 1)]


def test_vectors_of_each_text() -> None:
    """The row, the characters and the tokens of its own."""
    rows = np.arange(8, dtype="<f4").reshape(2, 4)
    request = embedding.dense_request([pb.EmbedRequest(inputs="abc"), pb.EmbedRequest(inputs="ü")])
    found = embedding.dense_replies(request, answer(5, 3, dense=Rows(dimensions=4, data=rows.tobytes())))
    assert [list(each.embeddings) for each in found] == rows.tolist()
    assert [(each.metadata.compute_chars, each.metadata.compute_tokens) for each in found] == [(3, 5), (1, 3)]


def test_weights_of_each_text() -> None:
    """A text may have none."""
    sparse = SparseRows(
        lengths=(2, 0, 1),
        indices=np.array([0, 20_000, 7], dtype="<i4").tobytes(),
        values=np.array([0.5, 2, 3], dtype="<f4").tobytes(),
    )
    request = embedding.sparse_request([pb.EmbedSparseRequest(inputs=each) for each in "abc"])
    found = embedding.sparse_replies(request, answer(3, 3, 3, sparse=sparse))
    pairs = [[(each.index, each.value) for each in reply.sparse_embeddings] for reply in found]
    assert pairs == [[(0, 0.5), (20_000, 2.0)], [], [(7, 3.0)]]


def test_token_vectors_of_each_text() -> None:
    """As many as it has rows, which may be fewer than tokens."""
    rows = np.arange(12, dtype="<f4").reshape(6, 2)
    request = embedding.all_request([pb.EmbedAllRequest(inputs="a"), pb.EmbedAllRequest(inputs="b")])
    result = {"tokens": Rows(dimensions=2, data=rows.tobytes()), "row_lengths": (4, 2)}
    found = embedding.all_replies(request, answer(4, 3, **result))
    vectors = [[list(each.embeddings) for each in reply.token_embeddings] for reply in found]
    assert vectors == [rows[:4].tolist(), rows[4:].tolist()]
    assert [reply.metadata.compute_tokens for reply in found] == [4, 3]


def test_labels_come_best_first() -> None:
    """Equal ones in the model's order."""
    request = prediction.predict_request(
        [pb.PredictRequest(inputs="ab"), pb.PredictRequest(inputs="c", raw_scores=True)]
    )
    scores = np.array([[0.25, 0.5, 0.25], [1, 2, 3]], dtype="<f4").tobytes()
    classified = Classified(answer=answer(4, 3, scores=scores), labels=("x", "y", "z"))
    found = prediction.predict_replies(request, classified)
    labels = [[(each.label, each.score) for each in reply.predictions] for reply in found]
    assert labels == [[("y", 0.5), ("x", 0.25), ("z", 0.25)], [("z", 3.0), ("y", 2.0), ("x", 1.0)]]
    assert found[0].metadata == pb.Metadata(compute_chars=2, compute_tokens=4)


@pytest.mark.parametrize("raw", [False, True])
def test_raw_scores_are_logits(raw: bool) -> None:
    """By every method."""
    options: dict[str, Any] = {"raw_scores": raw, "truncate": True, "truncation_direction": LEFT}
    cut = Cut(truncate=True, side=TruncationSide.LEFT)
    single = prediction.predict_request([pb.PredictRequest(inputs="a", **options)])
    pair = prediction.pair_request([pb.PredictPairRequest(inputs=["a", "b"], **options)])
    ranked = ranking.rerank_request([pb.RerankRequest(query="a", texts=["b"], **options)])
    assert (single.normalize, pair.normalize, ranked.activated, ranked.normalize) == (not raw, not raw, not raw, None)
    assert single.cut == pair.cut == ranked.query_cut == ranked.document_cut == cut
    assert (pair.texts, pair.pairs) == (("a",), ("b",))


@pytest.mark.parametrize("inputs", [[], ["a", "b", "c"]])
def test_a_pair_is_one_text_or_two(inputs: list[str]) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidInput, match="must have 1 or 2"):
        prediction.pair_request([pb.PredictPairRequest(inputs=inputs)])


def test_a_stream_of_texts_becomes_one_rerank() -> None:
    """Of raw_scores and return_text the first message's count."""
    messages = [
        pb.RerankStreamRequest(query="q", text="a", truncate=True, raw_scores=True, return_text=True),
        pb.RerankStreamRequest(query="q", text="b", truncate=True),
    ]
    whole = ranking.first_of_stream(messages[0])
    for message in messages:
        ranking.add_of_stream(whole, message)
    assert whole == pb.RerankRequest(query="q", texts=["a", "b"], truncate=True, raw_scores=True, return_text=True)
    for other in ({"query": "r", "truncate": True}, {"query": "q"}):
        with pytest.raises(InvalidInput, match="message 2 is not that of the messages before it"):
            ranking.add_of_stream(whole, pb.RerankStreamRequest(text="c", **other))


def test_query_and_text_are_not_both_empty() -> None:
    """One of the two may be."""
    assert ranking.rerank_request([pb.RerankRequest(texts=["a"])]).queries == ("",)
    assert ranking.rerank_request([pb.RerankRequest(query="q", texts=[""])]).documents == ("",)
    with pytest.raises(InvalidInput) as raised:
        ranking.rerank_request([pb.RerankRequest(texts=["a", ""])])
    assert raised.value.field == "documents[1]"


def test_an_unknown_direction_is_refused() -> None:
    """By its number; the known ones are named."""
    with pytest.raises(InvalidInput, match=r"truncation_direction is 7; there are 0 \(RIGHT\), 1 \(LEFT\)"):
        fields.cut(pb.EmbedRequest(truncation_direction=7))  # type: ignore[arg-type]


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
    described = Description(card=card(**changes), limits=Limits(), queued_tokens=1000)
    told_info = info.info_response(described, requests=7, threads=3)
    assert (told_info.model_id, told_info.model_dtype, told_info.model_type) == ("fake", "float32", kind)
    assert (told_info.max_concurrent_requests, told_info.tokenization_workers) == (7, 3)
    assert (told_info.max_input_length, told_info.max_batch_tokens, told_info.max_client_batch_size) == (10, 1000, 4096)
    for unset in ("sha", "docker_label", "model_sha", "max_batch_requests"):
        assert not told_info.HasField(unset)


def test_times_are_told_twice() -> None:
    """In nanoseconds in each reply, and in milliseconds beside one."""
    replies = [pb.EmbedResponse(metadata=fields.counted("abc", tokens=5)) for _ in range(2)]
    timing = Timing(tokenize=0.001, queue=0.002, compute=0.003, transfer=0.004, postprocess=0.005)
    fields.put_times(replies, timing, 0.02)
    expected = pb.Metadata(
        compute_chars=3,
        compute_tokens=5,
        total_time_ns=20_000_000,
        tokenization_time_ns=1_000_000,
        queue_time_ns=2_000_000,
        inference_time_ns=3_000_000,
    )
    assert [reply.metadata for reply in replies] == [expected] * 2
    assert dict(fields.headers(expected, "cuda:0")) == {
        "x-compute-type": "gpu",
        "x-compute-time": "20",
        "x-compute-characters": "3",
        "x-compute-tokens": "5",
        "x-total-time": "20",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "3",
    }


PREFIX = "Input validation error: "


@pytest.mark.parametrize(
    ("method", "error", "message", "field", "status"),
    [
        (
            "Embed/EmbedStream",
            InputTooLong("texts[7] has 9 tokens, the limit is 8; truncate would cut it", field="texts[7]"),
            PREFIX + "inputs has 9 tokens, the limit is 8; truncate would cut it",
            "inputs",
            "INVALID_ARGUMENT",
        ),
        (
            "Predict/PredictPair",
            InputTooLong("text_pairs[0] and its partner have 9 tokens together", field="text_pairs[0]"),
            PREFIX + "inputs[1] and its partner have 9 tokens together",
            "inputs[1]",
            "INVALID_ARGUMENT",
        ),
        (
            "Predict/PredictPairStream",
            InvalidInput("texts[3] is empty", field="texts[3]"),
            PREFIX + "inputs[0] is empty",
            "inputs[0]",
            "INVALID_ARGUMENT",
        ),
        (
            "Rerank/RerankStream",
            InvalidInput("documents[3] is empty", field="documents[3]"),
            PREFIX + "texts[3] is empty",
            "texts[3]",
            "INVALID_ARGUMENT",
        ),
        (
            "Tokenize/Decode",
            InvalidInput("tokenized[0] has the id 99", field="tokenized[0]"),
            PREFIX + "ids has the id 99",
            "ids",
            "INVALID_ARGUMENT",
        ),
        (
            "Embed/Embed",
            UnsupportedTask("the model has no prompt 'x'", field="prompt_name"),
            PREFIX + "the model has no prompt 'x'",
            "prompt_name",
            "INVALID_ARGUMENT",
        ),
        (
            "Embed/EmbedSparse",
            UnsupportedTask("the model has no SPARSE output", field="outputs[0]"),
            "the model has no SPARSE output",
            "",
            "FAILED_PRECONDITION",
        ),
        ("Embed/EmbedAll", UnsupportedTask("no output", field="outputs"), "no output", "", "FAILED_PRECONDITION"),
        ("Rerank/Rerank", UnsupportedTask("no method", field="method"), "no method", "", "FAILED_PRECONDITION"),
        ("Predict/Predict", UnsupportedTask("no task", field="model"), "no task", "", "FAILED_PRECONDITION"),
        ("Embed/Embed", UnknownModel("several", field="model"), "several", "", "FAILED_PRECONDITION"),
        (
            "Embed/Embed",
            Overloaded("2 requests", retry_after=1.5),
            "Model is overloaded: 2 requests",
            "",
            "RESOURCE_EXHAUSTED",
        ),
    ],
)
def test_errors_have_the_words_of_the_contract(
    method: str, error: SelvageError, message: str, field: str, status: str
) -> None:
    """Fields of its own messages; the reason stays ours."""
    found = told(f"/tei.v1.{method}", error)
    assert (found.message, found.field, found.status) == (message, field, status)
    assert (found.reason, found.retry_after) == (error.reason, error.retry_after)
