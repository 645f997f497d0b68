"""The names of services: written down once, in the contracts."""

import importlib
from pathlib import Path

import pytest

from frontend_service.api.selvage_v1 import servicers
from frontend_service.api.tei_v1 import tei_servicers
from frontend_service.workers import job_stream, link
from gpu_worker.link import outbox
from shared.server.options import PUBLIC_SERVICES, TEI_SERVICES, WORKER_SERVICES

STUBS = Path(__file__).parents[2] / "client"


def services_below(folder: str) -> set[str]:
    """Of all contracts there."""
    found: set[str] = set()
    for path in (STUBS / folder).glob("*_pb2.py"):
        module = importlib.import_module(".".join(path.relative_to(STUBS).with_suffix("").parts))
        found |= {service.full_name for service in module.DESCRIPTOR.services_by_name.values()}
    return found


@pytest.mark.parametrize(
    ("folder", "names"),
    [("selvage/v1", PUBLIC_SERVICES), ("tei/v1", TEI_SERVICES), ("selvage/worker/v1", WORKER_SERVICES)],
)
def test_no_service_of_a_contract_is_forgotten(folder: str, names: tuple[str, ...]) -> None:
    """Health tells of every one, and the harness waits for it."""
    assert services_below(folder) == set(names)


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ("/selvage.v1.EmbeddingService/Embed", True),
        ("/selvage.v1.ModelService/Tokenize", False),
        ("/tei.v1.Embed/EmbedStream", True),
        ("/tei.v1.Info/Info", False),
        ("/tei.v1.Tokenize/Decode", False),
    ],
)
def test_what_a_frontend_knows_by_itself_waits_for_no_worker(method: str, needed: bool) -> None:
    """So it is not refused where no worker could answer in time."""
    assert method.startswith((*servicers.LOCAL, *tei_servicers.LOCAL)) is not needed


def test_a_worker_speaks_more_often_than_it_is_given_up() -> None:
    """Several beats fit into the silence that ends a link; and a link is lost and found within ten seconds."""
    assert outbox.IDLE_BEAT * 3 < job_stream.SILENCE
    assert job_stream.SILENCE + 2 * link.LONGEST_PAUSE < 10
