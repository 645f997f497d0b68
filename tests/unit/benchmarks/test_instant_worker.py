"""The worker that computes nothing: it answers at once, and its results fit what is asked."""

import asyncio
from typing import Any

import pytest

from benchmarks.instant_worker import InstantEngine, InstantJob, card, instant_driver
from frontend_service.domain.limits import expected_reply
from frontend_service.workers.job_stream import JobReply
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import UnsupportedTask
from shared.jobs import Classify, Encode, Job, RaggedTokens
from shared.link_codec import UnsentOutcome
from shared.vectors import DataType, OutputKind
from support.clockwork import in_no_time


def job(identity: int, *lengths: int, outputs: Any = (OutputKind.DENSE,), data_type: Any = DataType.FLOAT32) -> Job:
    work = Encode(outputs=frozenset(outputs), normalize=True, normalize_tokens=True, data_type=data_type)
    return Job(id=identity, work=work, tokens=RaggedTokens.of([[5] * length for length in lengths]))


@pytest.mark.parametrize("data_type", DataType)
@pytest.mark.parametrize("outputs", [(OutputKind.DENSE,), (OutputKind.MULTI_VECTOR,), tuple(OutputKind)[:2]])
def test_a_frontend_takes_its_results(outputs: tuple[OutputKind, ...], data_type: DataType) -> None:
    """The frontend's own check of replies: the right kinds, and as many bytes as the rows need."""
    asked = job(1, 3, 5, outputs=set(outputs) - {OutputKind.SPARSE}, data_type=data_type)
    message = pb.AttachResponse()
    UnsentOutcome(asked.id, InstantJob(asked).result()).add_part(message, 1 << 26)
    reply = JobReply(expected_reply(asked.work, asked.tokens, card()))
    assert [reply.add(part) for part in message.answers][-1]
    reply.checked_result()


def test_other_work_is_refused() -> None:
    """It would be answered by nonsense else."""
    asked = Job(id=1, work=Classify(), tokens=RaggedTokens.of([[5]]))
    with pytest.raises(UnsupportedTask):
        InstantEngine().open(asked)


@in_no_time
async def test_no_time_passes() -> None:
    """Else requests a second of a frontend would be those of this worker."""
    driver = instant_driver()
    running = asyncio.create_task(driver.run())
    await asyncio.gather(*(driver.result_of(job(number, 50)) for number in range(100)))
    running.cancel()
    assert asyncio.get_running_loop().time() == 0
