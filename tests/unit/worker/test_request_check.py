"""What is checked of a frontend's message before anything is allocated for it."""

from dataclasses import replace

import pytest

from gpu_worker.link.request_check import JobCheck, JobLimits, check_message
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import LimitExceeded
from shared.jobs import Classify, Encode, Job, MaxSim, RaggedTokens
from shared.value_codec import MESSAGE_ENTRIES
from shared.vectors import MOST_DIMENSIONS, DataType, Layout, MultiVectors, OutputKind, TokenPooling
from support.lying_worker import honest_card

LABELS = tuple(f"label {number}" for number in range(37))


def test_only_tokens_that_are_asked_for_have_logits() -> None:
    """Of 460,800 tokens 900 have: 133 kB, where all of them would have 68 MB."""
    check = JobCheck(replace(honest_card("m"), labels=LABELS), JobLimits(), 2048)
    tokens = RaggedTokens.of([[7] + [8] * 511] * 900)
    check(Job(id=1, work=Classify(tokens=True, token_id=7), tokens=tokens))
    with pytest.raises(LimitExceeded, match="logits"):
        check(Job(id=1, work=Classify(tokens=True), tokens=tokens))


def test_token_rows_that_pooling_leaves_count() -> None:
    """A tenth of the rows of 400 texts, where all of them would be more than a message has room for."""
    card = replace(honest_card("m"), multi_vector_dimensions=128)
    check, tokens = JobCheck(card, JobLimits(), 2048), RaggedTokens.of([[7] * 512] * 400)
    work = Encode(outputs=frozenset({OutputKind.MULTI_VECTOR}), normalize=True, normalize_tokens=True)
    check(Job(id=1, work=replace(work, pooling=TokenPooling(pool_factor=10)), tokens=tokens))
    with pytest.raises(LimitExceeded, match="token rows"):
        check(Job(id=1, work=work, tokens=tokens))


@pytest.mark.parametrize("within", ["the message", "a job", "a MaxSim"])
def test_entries_are_counted_wherever_they_are(within: str) -> None:
    """An unknown field, here number 2000, takes three bytes and a step of the check."""
    entries = bytes((0x80, 0x7D, 0)) * (MESSAGE_ENTRIES + 1)
    job = pb.Job(max_sim=pb.MaxSimOptions.FromString(entries)) if within == "a MaxSim" else pb.Job.FromString(entries)
    message = entries if within == "the message" else pb.AttachRequest(jobs=[job]).SerializeToString()
    with pytest.raises(LimitExceeded, match=f"more than {MESSAGE_ENTRIES} entries"):
        check_message(message)
    check_message(message[:3] if within == "the message" else b"")


def test_rows_of_a_caller_have_a_bounded_width() -> None:
    """The kernels' memory grows with it, however few rows there are."""
    check = JobCheck(honest_card("m"), JobLimits(), 2048)

    def sides(dimensions: int) -> Job:
        rows = MultiVectors(data_type=DataType.FLOAT32, dimensions=dimensions, lengths=(1,), data=bytes(4 * dimensions))
        work = MaxSim(queries=rows, documents=rows, layout=Layout.MATRIX, unit_rows=False, mean=False)
        return Job(id=1, work=work, tokens=RaggedTokens.of([]))

    check(sides(MOST_DIMENSIONS))
    with pytest.raises(LimitExceeded, match="queries has rows of 16385 dimensions, the limit is 16384") as refused:
        check(sides(MOST_DIMENSIONS + 1))
    assert refused.value.field == "queries.dimensions"
