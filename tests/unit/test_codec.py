"""Domain types survive the way to the worker and back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.worker.v1 import worker_pb2 as pb
from shared import link_codec
from shared import value_codec as codec
from shared.card import ModelCard, QueryRoute
from shared.errors import Internal, InvalidInput, Overloaded, SelvageError
from shared.jobs import (
    Classify,
    Encode,
    HybridWeights,
    Job,
    JobResult,
    MaxSim,
    Priority,
    RaggedTokens,
    Rows,
    Score,
    SparseRows,
    TokenRanges,
)
from shared.link_codec import load_from_pb, load_to_pb
from shared.load import Backlog, Load
from shared.vectors import (
    DataType,
    InputType,
    Layout,
    MultiVectors,
    OutputKind,
    ScoringMethod,
    TokenPooling,
    TruncationSide,
)

ENCODE = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=False)
ROOM = 1000
SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize(("ids", "lengths"), [(b"1234", (2,)), (b"", (0,)), (b"12345", (1,))])
def test_ragged_tokens_refuse_what_does_not_add_up(ids: bytes, lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tokens"):
        RaggedTokens(ids=ids, lengths=lengths)


def there_and_back(jobs: list[Job]) -> list[tuple[int, Job | SelvageError]]:
    message = link_codec.jobs_to_pb(jobs, "f").SerializeToString()
    return list(link_codec.jobs_from_pb(pb.AttachRequest.FromString(message)))


@given(st.lists(SEQUENCES, min_size=1, max_size=6), st.none() | st.floats(0.001, 1e5))
def test_jobs_survive(groups: list[list[list[int]]], remaining: float | None) -> None:
    """Several jobs over one flat list, each with its own work."""
    works = [
        ENCODE,
        Score(
            method=ScoringMethod.LATE_INTERACTION,
            layout=Layout.MATRIX,
            queries=1,
            unit_rows=True,
            mean=False,
            pooling=TokenPooling(pool_factor=3),
        ),
        Encode(
            outputs=frozenset(OutputKind),
            dimensions=7,
            normalize=False,
            normalize_tokens=True,
            sparse_top_k=5,
            token_ids=True,
            pooling=TokenPooling(pool_factor=1.5, protected_tokens=0, normalize=False),
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
            priority=list(Priority)[index % 3],
            key=f"key {index}",
            request_id=f"request {index}",
        )
        for index, group in enumerate(groups)
    ]
    assert there_and_back(jobs) == [(job.id, job) for job in jobs]


@pytest.mark.parametrize("change", [{"pool_factor": 0.5}, {"protected_tokens": -1}], ids=str)
def test_a_pooling_that_makes_no_sense_is_an_error_of_its_job(change: dict[str, float]) -> None:
    pooled = replace(ENCODE, pooling=TokenPooling(pool_factor=2))
    message = link_codec.jobs_to_pb(
        [Job(id=number, work=pooled, tokens=RaggedTokens.of([[1]])) for number in (1, 2)], "f"
    )
    for name, value in change.items():
        setattr(message.jobs[0].encode.pooling, name, value)
    (_, first), (_, second) = link_codec.jobs_from_pb(message)
    assert isinstance(first, InvalidInput)
    assert first.field == next(iter(change))
    assert isinstance(second, Job)


def test_token_ranges_and_given_vectors_survive() -> None:
    ranges = TokenRanges(counts=(2, 1), starts=(0, 1, 0), stops=(3, 2, 1))
    vectors = MultiVectors(data_type=DataType.INT8, dimensions=2, lengths=(1, 0), data=b"ab", scales=b"1234")
    work = MaxSim(queries=vectors, documents=vectors, layout=Layout.PAIRS, unit_rows=True, mean=True)
    tokens = RaggedTokens.of([[1, 2, 3], [4]])
    jobs = [Job(id=number, work=ENCODE, tokens=tokens, ranges=having) for number, having in enumerate((None, ranges))]
    jobs += [Job(id=2, work=work), replace(jobs[0], id=3)]
    assert there_and_back(jobs) == [(job.id, job) for job in jobs]


@pytest.mark.parametrize(
    "change",
    [
        {"range_counts": [1]},
        {"range_counts": [3, 0]},
        {"range_counts": [-1, 4]},
        {"range_starts": [0, 1]},
        {"range_starts": [0, 2, 0]},
        {"range_starts": [-1, 1, 0]},
        {"range_stops": [3, 2, 2]},
        {"range_stops": []},
        {"range_counts": [], "range_starts": []},
    ],
)
def test_token_ranges_outside_of_their_sequences_are_refused(change: dict[str, list[int]]) -> None:
    """A count that is missing or below one, an empty range, one that goes on behind its sequence: that job alone."""
    ranges = TokenRanges(counts=(2, 1), starts=(0, 1, 0), stops=(3, 2, 1))
    job = Job(id=1, work=ENCODE, tokens=RaggedTokens.of([[1, 2, 3], [4]]), ranges=ranges)
    message = link_codec.jobs_to_pb([job, Job(id=2, work=ENCODE, tokens=job.tokens)], "f")
    for field, entries in change.items():
        message.jobs[0].ClearField(field)
        getattr(message.jobs[0], field).extend(entries)
    (_, refused), (_, neighbour) = link_codec.jobs_from_pb(message)
    assert isinstance(refused, InvalidInput)
    assert isinstance(neighbour, Job)


@pytest.mark.parametrize("size", [0, 1, ROOM, 2 * ROOM + 1])
def test_answers_travel_in_parts_of_bounded_size(size: int) -> None:
    """Cut and put together again; the end is in the last part only."""
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
    unsent, assembly = link_codec.UnsentOutcome(9, result), link_codec.ResultAssembly()
    parts = 0
    while not assembly.end:
        with pytest.raises(Internal, match="without an answer"):
            assembly.result()
        message = pb.AttachResponse()
        unsent.add_part(message, ROOM)
        assert message.ByteSize() <= ROOM + unsent.frame
        (part,) = pb.AttachResponse.FromString(message.SerializeToString()).answers
        assert part.job_id == 9
        parts += 1
        assert assembly.add(part) == (unsent.left == 0)
    assert assembly.result() == result
    assert assembly.size == 7 * size
    assert parts == max(1, -(-7 * size // ROOM))


@pytest.mark.parametrize("error", [Internal("oh"), InvalidInput("no", field="f"), Overloaded("full", retry_after=2.0)])
def test_errors_travel_as_answers(error: SelvageError) -> None:
    message, unsent = pb.AttachResponse(), link_codec.UnsentOutcome(9, error)
    unsent.add_part(message, ROOM)
    assert message.ByteSize() <= unsent.size
    with pytest.raises(type(error), match=error.message) as raised:
        link_codec.ResultAssembly().add(message.answers[0])
    assert (raised.value.field, raised.value.retry_after) == (error.field, error.retry_after)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sequences": 2}, "sequences"),
        ({"sequences": -1}, "below 1, or"),
        ({"lengths": [0]}, "below 1, or"),
        ({"lengths": [-2]}, "below 1, or"),
        ({"token_ids": b"123"}, "token_ids"),
    ],
)
def test_a_job_table_that_does_not_add_up_is_refused(change: dict[str, Any], match: str) -> None:
    """Naming what disagrees; then no job can be told from its neighbours."""
    request = link_codec.jobs_to_pb([Job(id=1, work=ENCODE, tokens=RaggedTokens.of([[1, 2]]))], "f")
    for name, value in change.items():
        if name == "lengths":
            request.lengths[:] = value
        else:
            setattr(request if name == "token_ids" else request.jobs[0], name, value)
    with pytest.raises(InvalidInput, match=match):
        link_codec.jobs_from_pb(request)


def test_a_load_survives() -> None:
    backlogs = {Priority.BULK: Backlog(keys=2, jobs=4, tokens=99, long_jobs=1, long_tokens=90)}
    told = {
        "queued_tokens": 99,
        "queued_jobs": 4,
        "tokens_per_second": 2.5,
        "turn": 64,
        "busy": 0.5,
        "express_tokens": 8,
        "step_tokens": 512,
        "others": 0.25,
    }
    coming = (3.5, 2.5, 1.5)
    load = Load(**told, backlogs=backlogs, draining=True, stalled="it hangs", coming=coming)  # type: ignore[arg-type]
    assert load_from_pb(load_to_pb(load)) == load


def test_the_card_survives() -> None:
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
        formats="o",
        chunk_tokens=256,
        cache_tokens=1 << 40,
        whole_texts="w",
        limited_by="--cache-megabytes",
        bitwise_invariant=True,
        token_pooling=TokenPooling(pool_factor=1.5, normalize=False),
        task_models={"retrieval": "m-retrieval"},
        message_templates={"": "m {text}"},
        prompted_message_templates={"": "p {prompt} {text}"},
        truncation_side=TruncationSide.LEFT,
        query_route=QueryRoute(
            default_input_type=InputType.DOCUMENT,
            max_tokens=512,
            vocabulary_size=1000,
            truncation_side=TruncationSide.LEFT,
            table_digest="d",
        ),
    )
    message = codec.card_to_pb(card)
    read = codec.card_from_pb(message)
    assert read == card
    assert {type(read.prompts), type(read.special_tokens), type(read.task_models)} == {dict}  # JSON takes no other maps
    route = message.query_route  # clients read fields of it that are the same for every table
    assert (route.family, route.attention, route.sparse_head, route.include_prompt) == (*["static"] * 3, True)
    message.token_pooling.pool_factor = 0
    with pytest.raises(ValueError, match="pool_factor is 0"):
        codec.card_from_pb(message)
