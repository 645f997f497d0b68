"""Jobs <-> Execute messages, both directions side by side. Nothing here knows gRPC."""

from collections.abc import Iterable

from selvage.v1 import ranking_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec import duration_from_pb, duration_to_pb, number, vectors_from_pb, vectors_to_pb
from shared.errors import InvalidInput, UnsupportedTask
from shared.jobs import Classify, Encode, HybridWeights, Job, MaxSim, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod


def job_bytes(job: Job) -> int:
    """About what a job's message holds."""
    given = (job.work.queries, job.work.documents) if isinstance(job.work, MaxSim) else ()
    return len(job.tokens.ids) + sum(len(each.data) for each in given if each is not None)


def jobs_to_pb(jobs: Iterable[Job]) -> pb.ExecuteRequest:
    request = pb.ExecuteRequest()
    ids = []
    for job in jobs:
        ids.append(job.tokens.ids)
        request.lengths.extend(job.tokens.lengths)
        message = request.jobs.add(
            id=job.id,
            sequences=len(job.tokens),
            prompt_lengths=job.prompt_lengths,
            second_segment_starts=job.second_segments,
            unattended_tails=job.unattended_tails,
            **_work_to_pb(job.work),
        )
        if job.remaining is not None:
            message.remaining.CopyFrom(duration_to_pb(max(job.remaining, 0.0)))
    request.token_ids = b"".join(ids)
    return request


def jobs_from_pb(request: pb.ExecuteRequest) -> list[Job]:
    """Raises InvalidInput where the flat list and the job table disagree."""
    lengths = tuple(request.lengths)
    if sum(job.sequences for job in request.jobs) != len(lengths):
        raise InvalidInput("jobs claim another number of sequences than lengths has", field="jobs")
    if sum(lengths) * 4 != len(request.token_ids):
        raise InvalidInput("lengths and token_ids disagree", field="token_ids")
    jobs, sequence, token = [], 0, 0
    for index, message in enumerate(request.jobs):
        own = lengths[sequence : sequence + message.sequences]
        ids = request.token_ids[token * 4 : (token + sum(own)) * 4]
        sequence, token = sequence + message.sequences, token + sum(own)
        try:
            jobs.append(_job_from_pb(message, RaggedTokens(ids=ids, lengths=own)))
        except ValueError as error:
            raise InvalidInput(f"jobs[{index}]: {error}", field=f"jobs[{index}]") from error
    return jobs


def _job_from_pb(message: pb.Job, tokens: RaggedTokens) -> Job:
    if message.priority:
        raise UnsupportedTask("this worker does not know priority yet", field="priority")
    # Of an unattended sequence a token must be left to attend to.
    for name, left in (("prompt_lengths", 0), ("second_segment_starts", 0), ("unattended_tails", 1)):
        given = getattr(message, name)
        if given and len(given) != len(tokens):
            raise ValueError(f"{name} has another length than the job has sequences")
        if any(not 0 <= each <= length - left for each, length in zip(given, tokens.lengths, strict=False)):
            raise ValueError(f"{name} has an entry outside its sequence")
    return Job(
        id=message.id,
        tokens=tokens,
        work=_work_from_pb(message),
        prompt_lengths=tuple(message.prompt_lengths),
        second_segments=tuple(message.second_segment_starts),
        unattended_tails=tuple(message.unattended_tails),
        remaining=duration_from_pb(message.remaining) if message.HasField("remaining") else None,
    )


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
            wanted = message.classify
            return Classify(tokens=wanted.tokens, token_id=wanted.token_id if wanted.HasField("token_id") else None)
        case "max_sim":
            given = message.max_sim
            return MaxSim(
                queries=vectors_from_pb(given.queries, "queries") if given.HasField("queries") else None,
                documents=vectors_from_pb(given.documents, "documents"),
                layout=Layout(given.layout),
                unit_rows=given.unit_rows,
                mean=given.mean,
                unit_queries=given.unit_queries,
                explain=given.explain,
            )
        case _:
            raise ValueError("a job says nothing to do")


def _weights_to_pb(weights: HybridWeights | None) -> ranking_pb2.HybridWeights | None:
    if weights is None:
        return None
    return ranking_pb2.HybridWeights(dense=weights.dense, sparse=weights.sparse, multi_vector=weights.multi_vector)


def weights_from_pb(message: ranking_pb2.HybridWeights) -> HybridWeights:
    """Raises ValueError."""
    return HybridWeights(dense=message.dense, sparse=message.sparse, multi_vector=message.multi_vector)
