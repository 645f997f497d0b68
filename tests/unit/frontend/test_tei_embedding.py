"""Messages of tei.v1 about vectors <-> domain types."""

from typing import Any

import numpy as np
import pytest
from tei_answers import LEFT, answer

from frontend_service.api.tei_v1 import messages as codec
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.jobs import Rows, SparseRows
from shared.vectors import OutputKind, TruncationSide
from tei.v1 import tei_pb2 as pb


def test_what_is_unset_is_as_the_contract_says() -> None:
    """Unit length, the end is cut if any, the model's own prompt, all dimensions."""
    request = codec.embed_request_from_pb(pb.EmbedRequest(inputs="b c"))
    assert (request.texts, request.outputs) == (("b c",), (OutputKind.DENSE,))
    assert (request.normalize, request.dimensions, request.prompt) == (True, None, PromptChoice())
    assert request.cut == Truncation(truncate=None, side=TruncationSide.RIGHT)


def test_every_option_of_an_embed_counts() -> None:
    message = pb.EmbedRequest(
        inputs="a", truncate=True, normalize=False, truncation_direction=LEFT, prompt_name="query", dimensions=0
    )
    request = codec.embed_request_from_pb(message)
    assert (request.normalize, request.dimensions, request.prompt) == (False, 0, PromptChoice(name="query"))
    assert request.cut == Truncation(truncate=True, side=TruncationSide.LEFT)


@pytest.mark.parametrize(
    ("read", "kind", "output", "normalize"),
    [
        (codec.embed_sparse_request_from_pb, pb.EmbedSparseRequest, OutputKind.SPARSE, None),
        (codec.embed_all_request_from_pb, pb.EmbedAllRequest, OutputKind.MULTI_VECTOR, False),
    ],
)
def test_options_of_the_other_outputs(read: Any, kind: Any, output: OutputKind, normalize: bool | None) -> None:
    """The same but for length; token vectors are as the model gives them."""
    request = read(kind(inputs="a", truncate=True, truncation_direction=LEFT, prompt_name="query"))
    assert (request.outputs, request.normalize, request.prompt) == ((output,), normalize, PromptChoice(name="query"))
    assert request.cut == Truncation(truncate=True, side=TruncationSide.LEFT)


def test_vectors_of_a_text() -> None:
    row = np.arange(4, dtype="<f4")
    request = codec.embed_request_from_pb(pb.EmbedRequest(inputs="übc"))
    reply = codec.embed_response_to_pb(request, answer(5, dense=Rows(dimensions=4, data=row.tobytes())))
    assert list(reply.embeddings) == row.tolist()
    assert (reply.metadata.compute_chars, reply.metadata.compute_tokens) == (3, 5)


@pytest.mark.parametrize("pairs", [[], [(0, 0.5), (20_000, 2.0)]])
def test_weights_of_a_text(pairs: list[tuple[int, float]]) -> None:
    ids, weights = [identity for identity, _ in pairs], [weight for _, weight in pairs]
    sparse = SparseRows(
        lengths=(len(pairs),),
        indices=np.array(ids, dtype="<i4").tobytes(),
        values=np.array(weights, dtype="<f4").tobytes(),
    )
    request = codec.embed_sparse_request_from_pb(pb.EmbedSparseRequest(inputs="a"))
    reply = codec.embed_sparse_response_to_pb(request, answer(3, sparse=sparse))
    assert [(each.index, each.value) for each in reply.sparse_embeddings] == pairs


def test_token_vectors_of_a_text() -> None:
    """As many as it has rows, which may be fewer than tokens."""
    rows = np.arange(6, dtype="<f4").reshape(3, 2)
    request = codec.embed_all_request_from_pb(pb.EmbedAllRequest(inputs="a"))
    result = {"tokens": Rows(dimensions=2, data=rows.tobytes()), "row_lengths": (3,)}
    reply = codec.embed_all_response_to_pb(request, answer(4, **result))
    assert [list(each.embeddings) for each in reply.token_embeddings] == rows.tolist()
    assert reply.metadata.compute_tokens == 4
