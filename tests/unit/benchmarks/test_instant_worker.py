"""The worker that computes nothing: its results fit what is asked, by the frontend's own check of replies."""

from typing import Any

import pytest

from benchmarks.instant_worker import InstantEngine, InstantJob, card
from frontend_service.domain.limits import expected_reply
from frontend_service.workers.job_stream import JobReply
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import UnsupportedTask
from shared.jobs import Classify, Encode, Job, RaggedTokens
from shared.link_codec import UnsentOutcome
from shared.vectors import DataType, OutputKind


@pytest.mark.parametrize("data_type", DataType)
def test_a_frontend_takes_its_results(data_type: DataType) -> None:
    """The right kinds, and as many bytes as the rows need; other work is refused."""
    outputs: Any = {OutputKind.DENSE, OutputKind.MULTI_VECTOR}
    work = Encode(outputs=frozenset(outputs), normalize=True, normalize_tokens=True, data_type=data_type)
    asked = Job(id=1, work=work, tokens=RaggedTokens.of([[5] * 3, [5] * 5]))
    message = pb.AttachResponse()
    UnsentOutcome(asked.id, InstantJob(asked).result()).add_part(message, 1 << 26)
    reply = JobReply(expected_reply(asked.work, asked.tokens, card()))
    assert [reply.add(part) for part in message.answers][-1]
    reply.checked_result()
    with pytest.raises(UnsupportedTask):
        InstantEngine().open(Job(id=1, work=Classify(), tokens=RaggedTokens.of([[5]])))
