"""TLS of both clients, with real handshakes."""

from collections.abc import Iterator

import grpc
import pytest

from selvage import TLS, errors
from support.fake_frontend import KINDS, FakeFrontend, connected, dense_row

trustme = pytest.importorskip("trustme")
AUTHORITY, OTHER = trustme.CA(), trustme.CA()
ROOT = AUTHORITY.cert_pem.bytes()

pytestmark = pytest.mark.parametrize("kind", KINDS)


def credentials(name: str, *, mutual: bool = False) -> grpc.ServerCredentials:
    """Of a service with this name in its certificate."""
    certificate = AUTHORITY.issue_cert(name)
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    return grpc.ssl_server_credentials(
        [(certificate.private_key_pem.bytes(), chain)], ROOT if mutual else None, require_client_auth=mutual
    )


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend(credentials("frontend.test")) as running:
        yield running


async def test_a_service_is_known_by_its_certificate(fake: FakeFrontend, kind: str) -> None:
    """By who signed it, and by the name in it; the key goes along."""
    tls = TLS(ca=ROOT, name="frontend.test")
    async with connected(kind, fake.address, tls=tls, key="secret") as client:
        assert (await client.embed("quiet") == dense_row("quiet")).all()
        assert len(await client.stream(["a", "b"])) == 2
    assert fake.metadata[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "tls",
    [
        TLS(ca=ROOT),
        TLS(ca=ROOT, name="another.test"),
        TLS(ca=OTHER.cert_pem.bytes(), name="frontend.test"),
        TLS(name="frontend.test"),
        False,
    ],
    ids=["by its address", "another name", "another authority", "whom gRPC trusts", "plain text"],
)
async def test_another_service_is_not_spoken_to(fake: FakeFrontend, kind: str, tls: TLS | bool) -> None:
    """Nothing is sent to it."""
    before = len(fake.asked)
    async with connected(kind, fake.address, tls=tls, key="secret", retries=0, timeout=120) as client:
        with pytest.raises(errors.Unavailable):
            await client.embed("quiet")
    assert len(fake.asked) == before


async def test_a_service_may_ask_for_a_certificate(kind: str) -> None:
    """Of the caller's own; without one, and with one of another authority, it is refused."""
    with FakeFrontend(credentials("frontend.test", mutual=True)) as fake:
        for authority in (AUTHORITY, OTHER, None):
            caller = authority.issue_cert("caller.test") if authority else None
            tls = TLS(
                ca=ROOT,
                certificate=caller and caller.cert_chain_pems[0].bytes(),
                key=caller and caller.private_key_pem.bytes(),
                name="frontend.test",
            )
            async with connected(kind, fake.address, tls=tls, retries=0, timeout=120) as client:
                if authority is AUTHORITY:
                    assert len(await client.embed("quiet")) == 3
                else:
                    with pytest.raises(errors.Unavailable):
                        await client.embed("quiet")
        assert len(fake.asked) == 1
