"""Conversion between jobs and the messages from frontend to worker, both directions side by side. Knows no gRPC."""

from collections.abc import Iterable, Iterator

from selvage.v1 import ranking_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared import trace_context
from shared.codec.fields import duration_from_pb, duration_to_pb, number, vectors_from_pb, vectors_to_pb
from shared.errors import InvalidInput, LimitExceeded, SelvageError
from shared.jobs import Classify, Encode, HybridWeights, Job, MaxSim, Priority, Score, Work
from shared.ragged import RaggedTokens, TokenRanges
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod

MESSAGE_JOBS = 4096
"""Most jobs in one message."""
MESSAGE_SEQUENCES = 1024 * 1024
"""Most sequences of all jobs in one message, and most texts of either side of a MaxSim."""
RANGE_BYTES = 6
"""Bytes of a token range in a message: its start and its stop, as varints."""


def job_bytes(job: Job) -> int:
    """Approximate size of a job's message in bytes."""
    vectors = (job.work.queries, job.work.documents) if isinstance(job.work, MaxSim) else ()
    ranges = 0 if job.ranges is None else RANGE_BYTES * len(job.ranges)
    return len(job.tokens.ids) + ranges + sum(len(side.data) for side in vectors if side is not None)


def jobs_to_pb(jobs: Iterable[Job], fingerprint: str) -> pb.AttachRequest:
    """Writes jobs into one message. `fingerprint`: that of the worker's model, over which a job's own may lie."""
    request = pb.AttachRequest(fingerprint=fingerprint)
    ids = []
    for job in jobs:
        ids.append(job.tokens.ids)
        request.lengths.extend(job.tokens.lengths)
        message = request.jobs.add(
            id=job.id,
            sequences=len(job.tokens),
            priority=number(job.priority),
            key=job.key,
            request_id=job.request_id,
            traceparent=job.traceparent,
            prompt_lengths=job.prompt_lengths,
            second_segment_starts=job.second_segments,
            unattended_tails=job.unattended_tails,
            **_ranges_to_pb(job.ranges),
            fingerprint="" if job.model == fingerprint else job.model,
            **_work_to_pb(job.work),
        )
        if job.remaining is not None:
            message.remaining.CopyFrom(duration_to_pb(max(job.remaining, 0.0)))
    request.token_ids = b"".join(ids)
    return request


def jobs_from_pb(request: pb.AttachRequest) -> Iterator[tuple[int, Job | SelvageError]]:
    """Reads each job with its id, or the error of that job alone.

    Raises InvalidInput if the token ids and the table of jobs disagree: then no job can be told from its neighbours.
    """
    if len(request.jobs) > MESSAGE_JOBS:
        raise LimitExceeded(f"a message has {len(request.jobs)} jobs, the limit is {MESSAGE_JOBS}", field="jobs")
    if len(request.lengths) > MESSAGE_SEQUENCES:
        raise LimitExceeded(
            f"a message has {len(request.lengths)} sequences, the limit is {MESSAGE_SEQUENCES}", field="lengths"
        )
    lengths = tuple(request.lengths)
    if min(lengths, default=1) < 1 or any(job.sequences < 0 for job in request.jobs):
        raise InvalidInput("a length is below 1, or a job has less than no sequences", field="lengths")
    if sum(job.sequences for job in request.jobs) != len(lengths):
        raise InvalidInput("jobs claim another number of sequences than lengths has", field="jobs")
    if sum(lengths) * 4 != len(request.token_ids):
        raise InvalidInput("lengths and token_ids disagree", field="token_ids")
    return _jobs(request, lengths)


def _jobs(request: pb.AttachRequest, lengths: tuple[int, ...]) -> Iterator[tuple[int, Job | SelvageError]]:
    sequence, token, ids = 0, 0, request.token_ids
    for index, message in enumerate(request.jobs):
        job_lengths = lengths[sequence : sequence + message.sequences]
        end = token + sum(job_lengths)
        tokens = RaggedTokens(ids=ids[token * 4 : end * 4], lengths=job_lengths)
        sequence, token = sequence + message.sequences, end
        try:
            yield message.id, _job_from_pb(message, tokens)
        except SelvageError as error:
            yield message.id, error
        except ValueError as error:
            yield message.id, InvalidInput(f"jobs[{index}]: {error}", field=f"jobs[{index}]")


def _job_from_pb(message: pb.Job, tokens: RaggedTokens) -> Job:
    # Third column: tokens of a sequence that must remain; attention needs at least one outside of the tail.
    for name, remain in (("prompt_lengths", 0), ("second_segment_starts", 0), ("unattended_tails", 1)):
        entries = getattr(message, name)
        if entries and len(entries) != len(tokens):
            raise ValueError(f"{name} has another length than the job has sequences")
        if any(not 0 <= entry <= length - remain for entry, length in zip(entries, tokens.lengths, strict=False)):
            raise ValueError(f"{name} has an entry outside its sequence")
    return Job(
        id=message.id,
        tokens=tokens,
        work=_work_from_pb(message),
        prompt_lengths=tuple(message.prompt_lengths),
        second_segments=tuple(message.second_segment_starts),
        unattended_tails=tuple(message.unattended_tails),
        ranges=_ranges_from_pb(message, tokens),
        remaining=duration_from_pb(message.remaining) if message.HasField("remaining") else None,
        priority=Priority(message.priority or Priority.DEFAULT),
        key=message.key,
        request_id=message.request_id,
        traceparent=trace_context.valid(message.traceparent) if message.traceparent else "",
        model=message.fingerprint,
    )


def _ranges_to_pb(ranges: TokenRanges | None) -> dict[str, tuple[int, ...]]:
    if ranges is None:
        return {}
    return {"range_counts": ranges.counts, "range_starts": ranges.starts, "range_stops": ranges.stops}


def _ranges_from_pb(message: pb.Job, tokens: RaggedTokens) -> TokenRanges | None:
    """Reads the token ranges of a job. Raises ValueError where they do not lie in its sequences."""
    if not (message.range_counts or message.range_starts or message.range_stops):
        return None
    if len(message.range_counts) != len(tokens):
        raise ValueError("range_counts has another length than the job has sequences")
    ranges = TokenRanges(
        counts=tuple(message.range_counts), starts=tuple(message.range_starts), stops=tuple(message.range_stops)
    )
    lengths = (length for length, count in zip(tokens.lengths, ranges.counts, strict=True) for _ in range(count))
    if any(stop > length for stop, length in zip(ranges.stops, lengths, strict=True)):
        raise ValueError("range_stops has an entry outside its sequence")
    return ranges


def _work_to_pb(work: Work) -> dict[str, object]:
    match work:
        case Encode():
            return {
                "encode": pb.EncodeOptions(
                    outputs=[number(kind) for kind in sorted(work.outputs)],
                    dimensions=work.dimensions,
                    normalize=work.normalize,
                    normalize_tokens=work.normalize_tokens,
                    data_type=number(work.data_type),
                    sparse_top_k=work.sparse_top_k,
                    token_ids=work.token_ids,
                    input_type=number(work.input_type),
                )
            }
        case Score():
            return {
                "score": pb.ScoreOptions(
                    method=number(work.method),
                    layout=number(work.layout),
                    queries=work.queries,
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                    weights=_weights_to_pb(work.weights),
                    explain=work.explain,
                )
            }
        case Classify():
            return {"classify": pb.ClassifyOptions(tokens=work.tokens, token_id=work.token_id)}
        case MaxSim():
            return {
                "max_sim": pb.MaxSimOptions(
                    queries=None if work.queries is None else vectors_to_pb(work.queries),
                    documents=vectors_to_pb(work.documents),
                    layout=number(work.layout),
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                    unit_queries=work.unit_queries,
                    explain=work.explain,
                )
            }


def _work_from_pb(message: pb.Job) -> Work:
    match message.WhichOneof("kind"):
        case "encode":
            encode = message.encode
            return Encode(
                outputs=frozenset(OutputKind(kind) for kind in encode.outputs),
                dimensions=encode.dimensions,
                normalize=encode.normalize,
                normalize_tokens=encode.normalize_tokens,
                data_type=DataType(encode.data_type),
                sparse_top_k=encode.sparse_top_k,
                token_ids=encode.token_ids,
                input_type=InputType(encode.input_type),
            )
        case "score":
            score = message.score
            return Score(
                method=ScoringMethod(score.method),
                layout=Layout(score.layout),
                queries=score.queries,
                unit_rows=score.unit_rows,
                mean=score.mean,
                weights=weights_from_pb(score.weights) if score.HasField("weights") else None,
                explain=score.explain,
            )
        case "classify":
            classify = message.classify
            token_id = classify.token_id if classify.HasField("token_id") else None
            return Classify(tokens=classify.tokens, token_id=token_id)
        case "max_sim":
            max_sim = message.max_sim
            return MaxSim(
                queries=vectors_from_pb(max_sim.queries, "queries") if max_sim.HasField("queries") else None,
                documents=vectors_from_pb(max_sim.documents, "documents"),
                layout=Layout(max_sim.layout),
                unit_rows=max_sim.unit_rows,
                mean=max_sim.mean,
                unit_queries=max_sim.unit_queries,
                explain=max_sim.explain,
            )
        case _:
            raise ValueError("a job says nothing to do")


def _weights_to_pb(weights: HybridWeights | None) -> ranking_pb2.HybridWeights | None:
    if weights is None:
        return None
    return ranking_pb2.HybridWeights(dense=weights.dense, sparse=weights.sparse, multi_vector=weights.multi_vector)


def weights_from_pb(message: ranking_pb2.HybridWeights) -> HybridWeights:
    """Reads the weights of a hybrid score. Raises ValueError if they make no sense."""
    return HybridWeights(dense=message.dense, sparse=message.sparse, multi_vector=message.multi_vector)
