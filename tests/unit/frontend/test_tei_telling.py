"""What tei.v1 tells of a model, of the time that it took, and of places in a text."""

from typing import Any

import pytest
from fakes import card

from frontend_service.api.tei_v1 import messages as codec
from frontend_service.domain.answer import Timing
from frontend_service.domain.limits import Limits
from frontend_service.services.models import ModelDescription
from shared.vectors import ScoringMethod, Task
from tei.v1 import tei_pb2 as pb


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
    described = ModelDescription(card=card(**changes), limits=Limits(), queued_tokens=1000)
    told_info = codec.info_response_to_pb(described, requests=7, threads=3)
    assert (told_info.model_id, told_info.model_dtype, told_info.model_type) == ("fake", "float32", kind)
    assert (told_info.max_concurrent_requests, told_info.tokenization_workers) == (7, 3)
    assert (told_info.max_input_length, told_info.max_batch_tokens, told_info.max_client_batch_size) == (10, 1000, 4096)
    for unset in ("sha", "docker_label", "model_sha", "max_batch_requests"):
        assert not told_info.HasField(unset)


def test_times_are_told_twice() -> None:
    """In nanoseconds in a reply, and in milliseconds beside it."""
    metadata = codec.compute_metadata("abc", tokens=5)
    timing = Timing(tokenize=0.001, queue=0.002, compute=0.003, transfer=0.004, postprocess=0.005)
    codec.put_times(metadata, timing, 0.02)
    expected = pb.Metadata(
        compute_chars=3,
        compute_tokens=5,
        total_time_ns=20_000_000,
        tokenization_time_ns=1_000_000,
        queue_time_ns=2_000_000,
        inference_time_ns=3_000_000,
    )
    assert metadata == expected
    assert dict(codec.metadata_headers(expected, "cuda:0")) == {
        "x-compute-type": "gpu",
        "x-compute-time": "20",
        "x-compute-characters": "3",
        "x-compute-tokens": "5",
        "x-total-time": "20",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "3",
    }
