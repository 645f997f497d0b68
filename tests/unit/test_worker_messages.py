"""Messages of a worker fit into what a frontend takes, however many texts a request may have."""

import pytest

from frontend_service.domain.limits import Limits
from frontend_service.workers.transport import RECEIVED_BYTES, received_bytes
from gpu_worker.link.outbox import Outbox
from shared.jobs import MESSAGE_SEQUENCES, JobResult, SparseRows
from shared.load import Load


@pytest.mark.parametrize(("texts", "needs_more"), [(4096, False), (131_072, False), (MESSAGE_SEQUENCES, True)])
async def test_all_lengths_of_a_result_fit(texts: int, needs_more: bool) -> None:
    """Those of token rows and of sparse vectors, as many texts as a job may have, beside other outcomes."""
    outbox = Outbox(Load)
    outbox.add_outcome(1, JobResult(row_lengths=(1,), scores=bytes(10_000_000)))
    lengths = (131_072,) * texts
    sparse = SparseRows(lengths=lengths, indices=b"", values=b"")
    outbox.add_outcome(2, JobResult(row_lengths=lengths, sparse=sparse))
    size = len(await outbox.next_message())
    assert 6 * texts < size <= received_bytes(texts)
    assert (size > RECEIVED_BYTES) is needs_more


def test_by_default_a_message_is_bounded_as_ever() -> None:
    """Parsed, a message takes up to thirty times its bytes."""
    assert received_bytes(Limits().texts) == RECEIVED_BYTES
