"""Messages of tei.v1 about vectors <-> domain types."""

from typing import Any

import numpy as np
import pytest
from tei_answers import LEFT, answer

from frontend_service.api.tei_v1.codec import embedding, fields, prediction
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.jobs import Rows, SparseRows
from shared.vectors import OutputKind, TruncationSide
from tei.v1 import tei_pb2 as pb


def test_what_is_unset_is_as_the_contract_says() -> None:
    """Unit length, the end is cut if any, the model's own prompt, all dimensions."""
    request = embedding.embed_request_from_pb([pb.EmbedRequest(inputs="a"), pb.EmbedRequest(inputs="b c")])
    assert (request.texts, request.outputs) == (("a", "b c"), (OutputKind.DENSE,))
    assert (request.normalize, request.dimensions, request.prompt) == (True, None, PromptChoice())
    assert request.cut == Truncation(truncate=None, side=TruncationSide.RIGHT)


def test_every_option_of_an_embed_counts() -> None:
    """False and zero are said, not left out."""
    message = pb.EmbedRequest(
        inputs="a", truncate=True, normalize=False, truncation_direction=LEFT, prompt_name="query", dimensions=0
    )
    request = embedding.embed_request_from_pb([message])
    assert (request.normalize, request.dimensions, request.prompt) == (False, 0, PromptChoice(name="query"))
    assert request.cut == Truncation(truncate=True, side=TruncationSide.LEFT)


@pytest.mark.parametrize(
    ("read", "kind", "output", "normalize"),
    [
        (embedding.embed_sparse_request_from_pb, pb.EmbedSparseRequest, OutputKind.SPARSE, None),
        (embedding.embed_all_request_from_pb, pb.EmbedAllRequest, OutputKind.MULTI_VECTOR, False),
    ],
)
def test_options_of_the_other_outputs(read: Any, kind: Any, output: OutputKind, normalize: bool | None) -> None:
    """The same but for length; token vectors are as the model gives them."""
    request = read([kind(inputs="a", truncate=True, truncation_direction=LEFT, prompt_name="query")])
    assert (request.outputs, request.normalize, request.prompt) == ((output,), normalize, PromptChoice(name="query"))
    assert request.cut == Truncation(truncate=True, side=TruncationSide.LEFT)


def test_messages_come_together_where_all_but_the_text_is_equal() -> None:
    """An option that is said to be its default is not one that is left out."""
    one = pb.EmbedRequest(inputs="a", truncate=True)
    assert fields.options_key(one) == fields.options_key(pb.EmbedRequest(inputs="other", truncate=True))
    others = [
        pb.EmbedRequest(inputs="a"),
        pb.EmbedRequest(inputs="a", truncate=True, normalize=False),
        pb.EmbedRequest(inputs="a", truncate=True, prompt_name=""),
        pb.EmbedRequest(inputs="a", truncate=True, truncation_direction=LEFT),
        pb.EmbedRequest(inputs="a", truncate=True, dimensions=4),
    ]
    assert len({fields.options_key(each) for each in (one, *others)}) == 6
    pairs = [pb.PredictPairRequest(inputs=["a"]), pb.PredictPairRequest(inputs=["a", "b"])]
    assert prediction.pair_options(pairs[0]) != prediction.pair_options(pairs[1])
    ids = [pb.DecodeRequest(ids=[1]), pb.DecodeRequest(ids=[2, 3])]
    assert fields.options_key(ids[0]) == fields.options_key(ids[1])


def test_vectors_of_each_text() -> None:
    """The row, the characters and the tokens of its own."""
    rows = np.arange(8, dtype="<f4").reshape(2, 4)
    request = embedding.embed_request_from_pb([pb.EmbedRequest(inputs="abc"), pb.EmbedRequest(inputs="ü")])
    found = embedding.embed_responses_to_pb(request, answer(5, 3, dense=Rows(dimensions=4, data=rows.tobytes())))
    assert [list(each.embeddings) for each in found] == rows.tolist()
    assert [(each.metadata.compute_chars, each.metadata.compute_tokens) for each in found] == [(3, 5), (1, 3)]


def test_weights_of_each_text() -> None:
    """A text may have none."""
    sparse = SparseRows(
        lengths=(2, 0, 1),
        indices=np.array([0, 20_000, 7], dtype="<i4").tobytes(),
        values=np.array([0.5, 2, 3], dtype="<f4").tobytes(),
    )
    request = embedding.embed_sparse_request_from_pb([pb.EmbedSparseRequest(inputs=each) for each in "abc"])
    found = embedding.embed_sparse_responses_to_pb(request, answer(3, 3, 3, sparse=sparse))
    pairs = [[(each.index, each.value) for each in reply.sparse_embeddings] for reply in found]
    assert pairs == [[(0, 0.5), (20_000, 2.0)], [], [(7, 3.0)]]


def test_token_vectors_of_each_text() -> None:
    """As many as it has rows, which may be fewer than tokens."""
    rows = np.arange(12, dtype="<f4").reshape(6, 2)
    request = embedding.embed_all_request_from_pb([pb.EmbedAllRequest(inputs="a"), pb.EmbedAllRequest(inputs="b")])
    result = {"tokens": Rows(dimensions=2, data=rows.tobytes()), "row_lengths": (4, 2)}
    found = embedding.embed_all_responses_to_pb(request, answer(4, 3, **result))
    vectors = [[list(each.embeddings) for each in reply.token_embeddings] for reply in found]
    assert vectors == [rows[:4].tolist(), rows[4:].tolist()]
    assert [reply.metadata.compute_tokens for reply in found] == [4, 3]
