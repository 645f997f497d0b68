"""Certificates as files, signed by an authority of the test's own."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Files:
    """Of PEM."""

    certificate: Path
    key: Path

    def write(self, own: trustme.LeafCert) -> None:
        """As deployments do it: one after the other, each in one move."""
        chain = b"".join(each.bytes() for each in own.cert_chain_pems)
        for path, content in ((self.certificate, chain), (self.key, own.private_key_pem.bytes())):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.replace(path)


class Authority:
    """Signs, and has a folder for the files."""

    def __init__(self, folder: Path) -> None:
        self._authority, self._folder = trustme.CA(), folder
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._authority.cert_pem.bytes())

    def issue(self, *names: str, ends: datetime.datetime | None = None) -> trustme.LeafCert:
        """For these names, until it ends."""
        return self._authority.issue_cert(*names, not_after=ends)

    def files(self, name: str, *names: str, ends: datetime.datetime | None = None) -> Files:
        """The same as `name`.pem and `name`.key."""
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.write(self.issue(*names, ends=ends))
        return files
