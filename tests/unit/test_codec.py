"""Domain types survive the way to the worker and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.worker.v1 import worker_pb2 as pb
from shared import codec, job_codec, result_codec
from shared.card import ModelCard
from shared.errors import Internal, InvalidInput, UnsupportedTask
from shared.jobs import Classify, Encode, HybridWeights, Job, JobResult, MaxSim, Rows, Score, SparseRows
from shared.ragged import RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, OutputKind, ScoringMethod, TruncationSide

ENCODE = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=False)
SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=5)


@given(SEQUENCES)
def test_ragged_tokens_keep_their_sequences(sequences: list[list[int]]) -> None:
    """Offsets cut the flat ids where the lists ended."""
    tokens = RaggedTokens.of(sequences)
    flat = memoryview(tokens.ids).cast("i")
    starts, stops = tokens.offsets[:-1], tokens.offsets[1:]
    assert [list(flat[start:stop]) for start, stop in zip(starts, stops, strict=True)] == sequences
    assert tokens.total == sum(map(len, sequences))


@pytest.mark.parametrize(("ids", "lengths"), [(b"1234", (2,)), (b"", (0,)), (b"12345", (1,))])
def test_ragged_tokens_refuse_what_does_not_add_up(ids: bytes, lengths: tuple[int, ...]) -> None:
    """Illegal states cannot be built."""
    with pytest.raises(ValueError, match="tokens"):
        RaggedTokens(ids=ids, lengths=lengths)


@given(st.lists(SEQUENCES, min_size=1, max_size=6), st.none() | st.floats(0.001, 1e5))
def test_jobs_survive(groups: list[list[list[int]]], remaining: float | None) -> None:
    """Several jobs over one flat list, each with its own work."""
    works = [
        ENCODE,
        Score(method=ScoringMethod.DENSE, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False),
        Encode(
            outputs=frozenset(OutputKind),
            dimensions=7,
            normalize=False,
            normalize_tokens=True,
            sparse_top_k=5,
            token_ids=True,
        ),
        Score(
            method=ScoringMethod.HYBRID,
            layout=Layout.MATRIX,
            queries=1,
            unit_rows=True,
            mean=True,
            weights=HybridWeights(dense=0.5, sparse=0, multi_vector=2),
        ),
        Classify(tokens=True, token_id=0),
        Classify(),
    ]
    jobs = [
        Job(
            id=2**63 + index,
            work=works[index % len(works)],
            tokens=RaggedTokens.of(group),
            prompt_lengths=tuple(len(each) % 2 for each in group),
            second_segments=tuple(len(each) for each in group),
            remaining=None if remaining is None else round(remaining, 3),
        )
        for index, group in enumerate(groups)
    ]
    assert job_codec.jobs_from_pb(pb.ExecuteRequest.FromString(job_codec.jobs_to_pb(jobs).SerializeToString())) == jobs


def test_given_vectors_survive() -> None:
    """Bytes, scales and empty texts."""
    vectors = MultiVectors(data_type=DataType.INT8, dimensions=2, lengths=(1, 0), data=b"ab", scales=b"1234")
    work = MaxSim(queries=vectors, documents=vectors, layout=Layout.PAIRS, unit_rows=True, mean=True)
    job = Job(id=1, work=work)
    assert job_codec.jobs_from_pb(job_codec.jobs_to_pb([job])) == [job]


@pytest.mark.parametrize("size", [0, 1, result_codec.CHUNK_BYTES, result_codec.CHUNK_BYTES * 2 + 1])
def test_results_travel_in_messages_of_at_most_4_mib(size: int) -> None:
    """Cut and put together again."""
    result = JobResult(
        dense=Rows(dimensions=1, data=b"d" * size, scales=b"s" * size),
        sparse=SparseRows(lengths=(size, 0), indices=b"i" * size, values=b"v" * size),
        tokens=Rows(dimensions=2, data=b"t" * size),
        token_ids=b"n" * size,
        row_lengths=(3, 4),
        scores=b"x" * size,
        queue=0.25,
        compute=0.5,
    )
    messages = [message.SerializeToString() for message in result_codec.result_to_pb(9, result)]
    assert max(map(len, messages)) <= 4 * 2**20
    assembly = result_codec.ResultAssembly()
    for message in messages:
        with pytest.raises(Internal, match="without an answer"):
            assembly.result()
        assembly.add(pb.ExecuteResponse.FromString(message))
    assert assembly.result() == result
    assert assembly.size == 7 * size


def test_a_job_table_that_does_not_add_up_is_refused() -> None:
    """Naming what disagrees."""
    request = job_codec.jobs_to_pb([Job(id=1, work=ENCODE, tokens=RaggedTokens.of([[1, 2]]))])
    request.jobs[0].sequences = 2
    with pytest.raises(InvalidInput, match="sequences"):
        job_codec.jobs_from_pb(request)
    request.jobs[0].sequences = 1
    request.token_ids = b"123"
    with pytest.raises(InvalidInput, match="token_ids"):
        job_codec.jobs_from_pb(request)


def test_a_priority_is_refused_honestly() -> None:
    """Not ignored: it is of a later day."""
    request = job_codec.jobs_to_pb([Job(id=1, work=ENCODE, tokens=RaggedTokens.of([[1, 2]]))])
    request.jobs[0].priority = 1
    with pytest.raises(UnsupportedTask, match="priority"):
        job_codec.jobs_from_pb(request)


def test_the_card_survives() -> None:
    """Every field of it."""
    card = ModelCard(
        id="m",
        family="bert",
        outputs=(OutputKind.DENSE, OutputKind.MULTI_VECTOR),
        methods=(ScoringMethod.DENSE,),
        default_method=ScoringMethod.DENSE,
        pooling="mean",
        dimensions=384,
        multi_vector_dimensions=128,
        normalizes=True,
        max_tokens=256,
        vocabulary_size=30522,
        dtype="float32",
        device="cpu",
        attention="a",
        linear="l",
        fingerprint="f",
        allowed_dimensions=(64, 128),
        prompts={"query": "q: "},
        default_prompt_name="query",
        include_prompt=False,
        special_tokens={"cls": 101},
        notice="n",
        truncation_side=TruncationSide.LEFT,
    )
    assert codec.card_from_pb(codec.card_to_pb(card)) == card
