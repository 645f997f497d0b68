"""What a server proves that it is itself with."""

from pathlib import Path

import pytest

from shared import security as fresh
from shared.security import identity, is_loopback
from support.certificates import Authority

ENCRYPTED = """-----BEGIN RSA PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00000000000000000000000000000000

AAAA
-----END RSA PRIVATE KEY-----
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_what_does_not_match_is_refused(authority: Authority, tmp_path: Path) -> None:
    """The key of another certificate, a key that asks for a password, and what is no PEM."""
    one, another = authority.files("one", "one.test"), authority.files("another", "another.test")
    with pytest.raises(ValueError, match="are no pair"):
        identity(str(one.certificate), str(another.key), "", pytest.fail)
    one.key.write_text(ENCRYPTED)
    with pytest.raises(ValueError, match="encrypted"):
        identity(str(one.certificate), str(one.key), "", pytest.fail)
    with pytest.raises(ValueError, match=r"another\.key is no PEM"):
        identity(str(another.certificate), str(another.key), str(another.key), pytest.fail)
    with pytest.raises(FileNotFoundError):
        identity(str(tmp_path / "none"), str(one.key), "", pytest.fail)


def test_old_files_count_until_both_new_ones_are_there(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new certificate beside the old key is no identity."""
    monkeypatch.setattr(fresh, "LOOK_SECONDS", 0.0)
    files, errors = authority.files("one", "one.test"), []
    found = identity(str(files.certificate), str(files.key), str(authority.file), errors.append)
    old, new = found.value, authority.issue("one.test")
    files.certificate.write_bytes(new.cert_chain_pems[0].bytes())
    assert found.value is old
    assert len(errors) == 1
    files.key.write_bytes(new.private_key_pem.bytes())
    assert found.value.certificate == new.cert_chain_pems[0].bytes() != old.certificate
    assert found.value.ca == old.ca == authority.file.read_bytes()
    assert "PRIVATE" not in repr(found.value)


@pytest.mark.parametrize(
    ("listen", "own"),
    [
        ("127.0.0.1:1", True),
        ("127.0.0.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.7:1", False),
        ("frontend:1", False),
    ],
)
def test_who_reaches_an_address(listen: str, own: bool) -> None:
    assert is_loopback(listen) is own
