"""Jobs of several callers that leave together, as one job: so a worker decodes, queues, packs and answers once.

Only jobs that want dense vectors of texts are merged, in the same format, of the same model, priority and fairness key,
with about the same time left. A merged job is short and has no more than one turn, so that it is served as its jobs
would be one after the other. A traced job stays alone, since spans tell of single jobs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from frontend_service.domain.limits import ExpectedReply, KindBytes
from shared.jobs import Encode, Job, JobResult, RaggedTokens, Rows
from shared.vectors import OutputKind

LEAST_SECONDS = 0.001
"""Times left that are shorter are one class."""
DENSE = frozenset({OutputKind.DENSE})
CLASSES = 10
"""Classes of the time left to a job for each time that it is 2.7 times as long: so the times of a class differ by a
tenth."""
MergeKey = tuple[Encode, int, str, str, int | None]


def merge_key(job: Job) -> MergeKey | None:
    """What jobs must have in common to be merged; None where the job stays alone."""
    work = job.work
    if not isinstance(work, Encode) or work.outputs != DENSE or job.ranges is not None or job.traceparent:
        return None
    time_class = None if job.remaining is None else round(CLASSES * log(max(job.remaining, LEAST_SECONDS)))
    return work, job.priority, job.key, job.model, time_class


def groups_of(jobs: Sequence[tuple[MergeKey | None, float]]) -> list[list[int]]:
    """The places of the jobs that are to be one, in the order of their first ones.

    `jobs`: the `merge_key` of each, and its share of the largest merged job.
    """
    groups: list[list[int]] = []
    last: dict[MergeKey, tuple[list[int], float]] = {}  # the last group of each key, and its share
    for place, (key, share) in enumerate(jobs):
        if key is not None and key in last and last[key][1] + share <= 1:
            group, before = last[key]
            group.append(place)
        else:
            group, before = [place], 0.0
            groups.append(group)
        if key is not None:
            last[key] = group, before + share
    return groups


def merged_job(jobs: Sequence[Job], identity: int) -> Job:
    """Makes one job of all sequences, in the order of the jobs, which have one `merge_key`.

    Its time is the longest that is left to one of them. Logs of the worker know it by the request id of the first job.
    """
    times = [job.remaining for job in jobs if job.remaining is not None]
    return replace(
        jobs[0],
        id=identity,
        tokens=RaggedTokens(
            ids=b"".join([job.tokens.ids for job in jobs]),
            lengths=tuple([length for job in jobs for length in job.tokens.lengths]),
        ),
        prompt_lengths=_joined(jobs, [job.prompt_lengths for job in jobs]),
        second_segments=_joined(jobs, [job.second_segments for job in jobs]),
        unattended_tails=_joined(jobs, [job.unattended_tails for job in jobs]),
        remaining=max(times, default=None),
    )


def _joined(jobs: Sequence[Job], columns: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """A number for each sequence, 0 for those of jobs that tell none; empty where no job tells any."""
    if not any(columns):
        return ()
    filled = [column or (0,) * len(job.tokens) for job, column in zip(jobs, columns, strict=True)]
    return tuple([number for column in filled for number in column])


def merged_reply(replies: Sequence[ExpectedReply]) -> ExpectedReply:
    """What the worker should reply to the merged job of jobs with these replies."""
    kinds = {kind: KindBytes(sum([reply.kinds[kind].fixed for reply in replies])) for kind in replies[0].kinds}
    return replies[0]._replace(kinds=kinds)


def results_of(result: JobResult, jobs: Sequence[Job]) -> Iterator[JobResult]:
    """Splits the result of the merged job."""
    dense = result.dense
    assert dense is not None
    sequences = sum([len(job.tokens) for job in jobs])
    row, scale, start = len(dense.data) // sequences, len(dense.scales) // sequences, 0
    for job in jobs:
        stop = start + len(job.tokens)
        rows = Rows(
            dimensions=dense.dimensions,
            data=dense.data[start * row : stop * row],
            scales=dense.scales[start * scale : stop * scale],
        )
        yield JobResult(dense=rows, queue=result.queue, compute=result.compute)
        start = stop
