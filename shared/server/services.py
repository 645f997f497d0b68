"""Full names of the gRPC services of each process, for registration, health checks and the harness.

They are read from the contracts, so that a service is written down once.
"""

from typing import Any

from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.worker.v1 import worker_pb2
from tei.v1 import tei_pb2


def services_of(*contracts: Any) -> tuple[str, ...]:
    """Full names of the services in generated modules, in order."""
    services = (service for contract in contracts for service in contract.DESCRIPTOR.services_by_name.values())
    return tuple(service.full_name for service in services)


PUBLIC_SERVICES = services_of(embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
"""Services of a frontend for selvage.v1."""

TEI_SERVICES = services_of(tei_pb2)
"""Services of a frontend for clients of text-embeddings-inference."""

WORKER_SERVICES = services_of(worker_pb2)
"""Services of a worker, for frontends."""
