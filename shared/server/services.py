"""The services that each process has, by full name: what is registered, what health tells of, what a harness waits for.

Read from the contracts, so that a service is written down once.
"""

from typing import Any

from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.worker.v1 import worker_pb2
from tei.v1 import tei_pb2


def _services(*contracts: Any) -> tuple[str, ...]:
    """Of files of a contract, in their order."""
    found = (service for contract in contracts for service in contract.DESCRIPTOR.services_by_name.values())
    return tuple(service.full_name for service in found)


PUBLIC_SERVICES = _services(embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
"""Of a frontend's own contract."""

TEI_SERVICES = _services(tei_pb2)
"""Of a frontend's door for clients of text-embeddings-inference."""

WORKER_SERVICES = _services(worker_pb2)
"""Of a worker."""
