"""Who may ask, by a file of hashes."""

import io
import re
import tomllib
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frontend_service.access import new_key
from frontend_service.access.api_keys import ApiKeys, hashed
from shared.caller import Caller, caller_of
from shared.errors import Overloaded, Unauthenticated
from shared.jobs import Priority
from shared.security import LOOK_SECONDS, MOST_BYTES
from shared.server.admission import Bounds
from shared.server.calls import Calls

SEARCH, BATCH = "sv-search", "sv-batch"
FILE = f"""
[[keys]]
name = "search"
sha256 = "{hashed(SEARCH)}"
priority = "interactive"
fairness_key = "tenant"

[[keys]]
name = "batch"
sha256 = "{hashed(BATCH)}"
priority = "bulk"
requests_at_once = 2
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    return file


def asking(secret: str, **headers: str) -> Caller:
    sent = [
        ("authorization", f"Bearer {secret}"),
        *((name.replace("_", "-"), header) for name, header in headers.items()),
    ]
    return caller_of("m", "id", sent, host="10.0.0.7", remaining=None)


def test_a_key_tells_for_whom_it_is(path: Path) -> None:
    """What the caller says of itself does not count, and the secret goes no further."""
    caller = ApiKeys(str(path)).identify(asking(SEARCH, selvage_key="another"))
    assert (caller.key, caller.priority, caller.quota, caller.secret) == ("tenant", Priority.INTERACTIVE, None, "")
    assert ApiKeys(str(path)).identify(asking(BATCH)).key == "batch"
    assert SEARCH not in repr(asking(SEARCH))


@pytest.mark.parametrize(
    ("secret", "priority", "served"),
    [(SEARCH, "bulk", "BULK"), (SEARCH, "interactive", "INTERACTIVE"), (BATCH, "interactive", "BULK")],
)
def test_metadata_can_only_make_it_less_urgent(path: Path, secret: str, priority: str, served: str) -> None:
    assert ApiKeys(str(path)).identify(asking(secret, selvage_priority=priority)).priority == Priority[served]


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer sv-wrong", "Basic c3Ytc2VhcmNo", f"Bearer {hashed(SEARCH)}"])
def test_without_a_known_key_nobody_asks(path: Path, header: str) -> None:
    """The hash is no key. The message never holds what was shown."""
    calls = Calls(timeout=600, identify=ApiKeys(str(path)).identify)
    with pytest.raises(Unauthenticated) as refused:
        calls.identified(caller_of("m", "id", [("authorization", header)], host="h", remaining=None))
    assert "wrong" not in refused.value.message
    assert calls.admission.refused["unauthenticated"] == 1


async def test_requests_of_a_key_at_once(path: Path) -> None:
    """The third is refused; of other keys any number may be there; what has ended makes room."""
    keys = ApiKeys(str(path))
    calls = Calls(timeout=600, bounds=Bounds(), identify=keys.identify)
    batch, search = calls.identified(asking(BATCH)), calls.identified(asking(SEARCH))
    with calls.running(batch):
        with calls.running(batch):
            with pytest.raises(Overloaded, match="this API key has 2 requests in progress"), calls.running(batch):
                pass
            with calls.running(search), calls.running(search), calls.running(search):
                pass
        with calls.running(batch):
            pass
    assert calls.admission.refused["quota"] == 1


def test_the_file_is_read_again(path: Path) -> None:
    """A key that was taken out is no longer known; what runs with one that stays still counts."""
    now = 0.0
    keys = ApiKeys(str(path), lambda: now)
    before = keys.identify(asking(BATCH)).quota
    path.write_text(FILE[FILE.index("[[keys]]", 10) :].replace("= 2", "= 5"))
    now = LOOK_SECONDS
    after = keys.identify(asking(BATCH)).quota
    assert after is before
    assert after is not None
    assert after.most == 5
    with pytest.raises(Unauthenticated):
        keys.identify(asking(SEARCH))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys = 3", "keys: "),
        ("[[keys]]\nname = 'a'", "keys.0.sha256: Field required"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{SEARCH}'", "keys.0.sha256: String should match"),
        (FILE.replace("bulk", "soon"), "keys.1.priority: Value error, there are interactive, default, bulk"),
        (FILE.replace('"bulk"', '["bulk"]'), "keys.1.priority: Value error"),
        (FILE.replace("at_once = 2", "at_once = 0"), "keys.1.requests_at_once: "),
        (FILE.replace("fairness_key", "fair"), "keys.0.fair: Extra inputs"),
        (FILE + FILE, "the name of 'search' is there twice"),
        ("[[keys", "Expected"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(path: Path, text: str, words: str) -> None:
    """The message names the entry and the field, and never quotes a value: it may be a key."""
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        ApiKeys(str(path))
    assert SEARCH not in str(refused.value)


GARBAGE = {
    "nothing": b"",
    "no entry": b"# soon",
    "another format": b'{"keys": []}',
    "half an entry": FILE[:-20].encode(),
    "an entry without its hash": FILE.replace("sha256", "md5").encode(),
    "bytes": bytes(range(256)),
    "half a letter": FILE.encode() + b'name = "\xc3',
    "UTF-16": FILE.encode("utf-16"),
    "zeros": bytes(4096),
    "nested without end": b"keys = " + b"[" * 100_000,
    "tables without end": b"[" + b".".join([b"a"] * 5_000) + b"]\nb = 1",
    "a number without end": b"keys = " + b"9" * 100_000,
    "a date that there is none": b"keys = 2026-13-45",
    "too long": b"#" * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_file_leaves_the_keys_that_were_there(path: Path, garbage: bytes) -> None:
    """It is logged once and quotes no line of the file; the next whole file counts. At the start it is an error."""
    now = 0.0
    keys = ApiKeys(str(path), lambda: now)
    search = keys.identify(asking(SEARCH))
    path.write_bytes(garbage)
    with pytest.raises(ValueError, match=r"\S"):
        ApiKeys(str(path))
    with capture_logs() as lines:
        for _ in range(3):
            now += LOOK_SECONDS
            assert keys.identify(asking(SEARCH)).key == "tenant"
            assert keys.accepts(search)
    assert [line["event"] for line in lines] == ["API keys not read again, the old ones stay"]
    assert hashed(SEARCH) not in lines[0]["why"]
    path.write_text(FILE[FILE.index("[[keys]]", 10) :])
    now += LOOK_SECONDS
    assert not keys.accepts(search)
    assert keys.accepts(keys.identify(asking(BATCH)))


@pytest.mark.parametrize(
    ("limits", "requests", "streams"),
    [("", None, None), ("requests_at_once = 3", 3, 3), ("streams_at_once = 2", None, 2)],
)
def test_streams_of_a_key_are_limited_as_its_requests_are(
    path: Path, limits: str, requests: int | None, streams: int | None
) -> None:
    path.write_text(FILE.replace("requests_at_once = 2", limits))
    batch = ApiKeys(str(path)).identify(asking(BATCH))
    most = [quota and quota.most for quota in (batch.quota, batch.stream_quota)]
    assert most == [requests, streams]


def test_a_new_key_is_known_by_what_is_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds the entry only, as the file takes it."""
    errors = io.StringIO()
    with redirect_stderr(errors):
        limits = ["--requests-at-once", "3", "--streams-at-once", "1"]
        assert new_key.main(['a "quoted" name', "--priority", "bulk", *limits]) == 0
    entry, secret = capsys.readouterr().out, errors.getvalue().split()[-1]
    assert secret not in entry
    [written] = tomllib.loads(entry)["keys"]
    assert (written["requests_at_once"], written["streams_at_once"]) == (3, 1)
    path.write_text(FILE + entry)
    assert ApiKeys(str(path)).identify(asking(secret)).key == 'a "quoted" name'
