"""A target that is no frontend's address: refused when the client is made where its form says so, explained else."""

import pytest

from selvage import Client
from selvage.bulk.flags import parse
from selvage.connection import check_target, is_public

MUST = "must be host:port, such as 127.0.0.1:50051"
NOT_HTTP = "calls go to the port of gRPC (--listen), not to that of HTTP (--http-listen)."
WRONG = {
    "http://127.0.0.1:8080": f"{MUST}, without http://; {NOT_HTTP}",
    "http://127.0.0.1:8080/v1": f"{MUST}, without http://; {NOT_HTTP}",
    "HTTPS://box": f"{MUST}, without HTTPS://; {NOT_HTTP} Give tls=True for TLS.",
    "grpc://127.0.0.1:50051": f"{MUST}, without grpc://; {NOT_HTTP}",
    "127.0.0.1": f"{MUST}: it names no port",
    "localhost": f"{MUST}: it names no port",
    "[::1]": f"{MUST}: it names no port",
    "dns:///frontends": f"{MUST}: it names no port",
    "ipv4:10.0.0.1,10.0.0.2": f"{MUST}: it names no port",
    "ipv4:10.0.0.1:50051,10.0.0.2": MUST,
    "127.0.0.1:": MUST,
    "127.0.0.1:0": MUST,
    "127.0.0.1:99999": MUST,
    "127.0.0.1:50051/": MUST,
    "::1": MUST,
    "::1:50051": MUST,
    ":50051": MUST,
    "": MUST,
}
RIGHT = (
    *("127.0.0.1:50051", "localhost:1", "box.example.com:443", "[::1]:50051", "[fe80::1%25eth0]:50051"),
    *("dns:box:1", "dns:///box:1", "dns://1.1.1.1/box:1", "dns://1.1.1.1:53/box:1", "ipv4:10.0.0.1:1,10.0.0.2:1"),
    *("ipv6:[::1]:1", "ipv6:%5B::1%5D:50051", "unix:/tmp/a", "unix:///tmp/a", "unix-abstract:a", "vsock:2:1"),
    *("xds:///a", "xds:a", "dns:/box:1", "ipv4:///10.0.0.1:1"),
)
LOCAL = (
    *("127.0.0.1:50051", "localhost:50051", "[::1]:50051", "ipv6:%5B::1%5D:50051", "unix:/tmp/a.b", "frontend:50051"),
    *("dns:///frontend.default.svc.cluster.local:50051", "ipv4:10.0.0.1:1,192.168.1.1:1"),
)
PUBLIC = (
    *("ipv4:10.0.0.1:1,8.8.8.8:1", "8.8.8.8:443", "[2606:4700::1]:443", "dns:///api.example.com:443"),
    "dns://1.1.1.1/api.example.com",
)


@pytest.mark.parametrize("target", WRONG)
def test_a_client_says_what_a_target_is(target: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="target is") as raised:
        Client(target, tls=target.startswith("HTTPS"))
    assert str(raised.value) == f"target is {target!r}, {WRONG[target]}"


def test_every_form_of_an_address_is_taken() -> None:
    """Those of gRPC too that name no host and port; TLS has a port of its own, 443."""
    for target in RIGHT:
        check_target(target)
    for target in ("box.example.com", "dns:///box.example.com", "ipv4:10.0.0.1"):
        check_target(target, tls=True)


def test_public_addresses_are_told_from_others() -> None:
    """By their form: no name is looked up."""
    assert [target for target in (*LOCAL, *PUBLIC) if is_public(target)] == list(PUBLIC)


def test_the_bulk_command_says_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    """With the flag, in one line, and before it reads anything."""
    with pytest.raises(SystemExit) as ended:
        parse(["nothing.jsonl", "--output", "o", "--target", "127.0.0.1:50051", "--target", "127.0.0.1"])
    assert ended.value.code == 2
    line = f"--target: target is '127.0.0.1', {MUST}: it names no port (--help explains)"
    assert capsys.readouterr().err == f"python -m selvage.bulk: {line}\n"
