"""A piece at the head of a message is what protobuf reads there, and is read without a copy."""

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpu_worker.link.outbox import OUTCOMES_BYTES, SMALL_BYTES, Outbox
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import Internal, SelvageError
from shared.jobs import JobResult, Rows
from shared.link_codec import LeadingPiece, ResultAssembly, leading_piece, led_by
from shared.load import Load

MEBIBYTE = 1024 * 1024
IDS, KINDS = some.integers(0, 2**64 - 1), some.sampled_from(list(pb.ChunkKind.values())[1:])
CHUNKS = some.lists(some.builds(pb.Chunk, kind=KINDS, data=some.binary(max_size=300)), max_size=3)
ENDS = some.none() | some.builds(pb.JobEnd, dense_dimensions=some.integers(0, 9))
PARTS = some.builds(pb.AnswerPart, job_id=IDS, chunks=CHUNKS, end=ENDS)
MESSAGES = some.builds(
    pb.AttachResponse,
    answers=some.lists(PARTS, max_size=3),
    load=some.none() | some.builds(pb.Load, queued_jobs=some.integers(0, 9)),
)


@given(IDS, KINDS, some.binary(min_size=1, max_size=40_000), MESSAGES)
def test_protobuf_reads_a_piece_as_a_part_of_an_answer(
    job_id: int, kind: int, data: bytes, rest: pb.AttachResponse
) -> None:
    """The first one; and it is found again, with the rest."""
    piece = LeadingPiece(job_id=job_id, kind=kind, data=data)
    raw = led_by(piece, rest.SerializeToString())
    expected = pb.AttachResponse(answers=[pb.AnswerPart(job_id=job_id)])
    expected.answers[0].chunks.add(kind=kind, data=data)  # type: ignore[arg-type]
    expected.MergeFrom(rest)
    assert pb.AttachResponse.FromString(raw) == expected
    if job_id:
        assert leading_piece(raw) == (piece, rest.SerializeToString())


@given(MESSAGES)
def test_of_any_message_as_much_is_read_as_protobuf_reads(message: pb.AttachResponse) -> None:
    """Whoever wrote it: by the piece and the rest, or, where none leads, by protobuf alone."""
    found = leading_piece(message.SerializeToString())
    if found is None:
        return
    piece, rest = found
    read = pb.AttachResponse(answers=[pb.AnswerPart(job_id=piece.job_id)])
    read.answers[0].chunks.add(kind=piece.kind, data=bytes(piece.data))  # type: ignore[arg-type]
    read.MergeFromString(bytes(rest))
    assert read == message


def test_a_piece_is_read_without_a_copy() -> None:
    raw = led_by(LeadingPiece(job_id=7, kind=3, data=bytes(1_000_000)), b"")
    tracemalloc.start()
    try:
        found = leading_piece(raw)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert found is not None
    assert len(found[0].data) == 1_000_000


def _sizes(*counts: int) -> JobResult:
    dense, scales, tokens = (bytes([number]) * count for number, count in enumerate(counts, start=1))
    return JobResult(dense=Rows(dimensions=1, data=dense, scales=scales), tokens=Rows(dimensions=1, data=tokens))


RESULTS = {
    1: _sizes(3 * OUTCOMES_BYTES + 1, 0, 0),
    2: _sizes(OUTCOMES_BYTES, SMALL_BYTES, 5),
    3: _sizes(10, 20, 30),
    4: _sizes(10, 2 * OUTCOMES_BYTES, SMALL_BYTES + 1),
    5: _sizes(0, 0, SMALL_BYTES + 1),
}


@pytest.mark.parametrize("leads", [True, False], ids=["by its piece", "by protobuf alone"])
async def test_answers_of_any_size_arrive_whole(leads: bool) -> None:
    """They take turns; a reader that knows nothing of pieces gets the same."""
    outbox = Outbox(lambda: Load(queued_jobs=5))
    for identity, result in RESULTS.items():
        outbox.add_outcome(identity, result)
    outbox.add_outcome(6, Internal("oh"))
    assemblies = {identity: ResultAssembly() for identity in (*RESULTS, 6)}
    ended, pieces = list[int](), 0
    while not outbox.empty:
        raw = await outbox.next_message()
        assert len(raw) < MEBIBYTE
        found = leading_piece(raw) if leads else None
        if found is not None:
            piece, rest = found
            pieces += 1
            assemblies[piece.job_id].append(piece.kind, piece.data)
            raw = bytes(rest)
        message = pb.AttachResponse.FromString(raw)
        assert message.load.queued_jobs == 5
        for part in message.answers:
            if part.job_id == 6:
                with pytest.raises(Internal, match="oh"):
                    assemblies[6].add(part)
            elif assemblies[part.job_id].add(part):
                ended.append(part.job_id)
    assert sorted(ended) == sorted(RESULTS)
    assert {each: assemblies[each].result() for each in RESULTS} == RESULTS
    assert (outbox.unsent, pieces) == (0, 12 if leads else 0)


COUNTS = some.integers(0, 3 * OUTCOMES_BYTES) | some.integers(0, 2 * SMALL_BYTES) | some.integers(0, 10)
LENGTHS = some.lists(some.sampled_from([0, 100, 8192, 2**31 - 1]), max_size=3).map(lambda few: tuple(few) * 500)
OUTCOMES = some.builds(
    lambda counts, lengths: replace(_sizes(*counts), row_lengths=lengths), some.tuples(*[COUNTS] * 3), LENGTHS
) | some.builds(Internal, some.text(max_size=500))


@settings(max_examples=25, deadline=None)
@given(some.lists(some.tuples(some.sampled_from([1, 20, 8000]), OUTCOMES), min_size=1, max_size=4))
async def test_no_message_is_larger_than_a_mebibyte(outcomes: list[tuple[int, JobResult | SelvageError]]) -> None:
    """However many outcomes of whatever sizes wait, errors too; and everything that was added leaves."""
    outbox = Outbox(lambda: Load(queued_jobs=5))
    for copies, outcome in outcomes:
        small = isinstance(outcome, SelvageError) or len(outcome.row_lengths) < 10
        for identity in range(copies if small else 1):
            outbox.add_outcome(2**63 + identity, outcome)
    while not outbox.empty:
        assert len(await outbox.next_message()) < MEBIBYTE
    assert outbox.unsent == 0


async def test_an_outcome_whose_lengths_are_too_many_is_sent_all_the_same() -> None:
    """Alone, in a message that is as large as it needs to be."""
    outbox = Outbox(Load)
    outbox.add_outcome(1, replace(_sizes(SMALL_BYTES + 1, 0, 0), row_lengths=(8192,) * MEBIBYTE))
    sizes = []
    while not outbox.empty:
        sizes.append(len(await outbox.next_message()))
    assert len(sizes) == 2
    assert sizes[0] < MEBIBYTE < sizes[1]
