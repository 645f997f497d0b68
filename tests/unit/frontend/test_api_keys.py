"""Who may ask, by a file of hashes."""

import io
import re
import tomllib
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from frontend_service.access import new_key
from frontend_service.access.api_keys import ApiKeys, hashed
from shared.caller import Caller, caller_of
from shared.errors import InvalidInput, Overloaded, Unauthenticated
from shared.jobs import Priority
from shared.security.reloaded_file import LOOK_SECONDS
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
    found = tmp_path / "keys.toml"
    found.write_text(FILE)
    return found


def asking(secret: str, **headers: str) -> Caller:
    sent = [("authorization", f"Bearer {secret}"), *((name.replace("_", "-"), each) for name, each in headers.items())]
    return caller_of("m", "id", sent, host="10.0.0.7", remaining=None)


def test_a_key_tells_for_whom_it_is(path: Path) -> None:
    """What the caller says of itself does not count, and the secret goes no further."""
    found = ApiKeys(str(path)).identify(asking(SEARCH, selvage_key="another"))
    assert (found.key, found.priority, found.quota, found.secret) == ("tenant", Priority.INTERACTIVE, None, "")
    assert ApiKeys(str(path)).identify(asking(BATCH)).key == "batch"


@pytest.mark.parametrize(
    ("secret", "asked", "served"),
    [(SEARCH, "bulk", "BULK"), (SEARCH, "interactive", "INTERACTIVE"), (BATCH, "interactive", "BULK")],
)
def test_metadata_can_only_make_it_less_urgent(path: Path, secret: str, asked: str, served: str) -> None:
    assert ApiKeys(str(path)).identify(asking(secret, selvage_priority=asked)).priority == Priority[served]


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer sv-wrong", "Basic c3Ytc2VhcmNo", f"Bearer {hashed(SEARCH)}"])
def test_without_a_known_key_nobody_asks(path: Path, header: str) -> None:
    """The hash is no key. The message never holds what was shown."""
    calls = Calls(timeout=1.0, identify=ApiKeys(str(path)).identify)
    with pytest.raises(Unauthenticated) as refused:
        calls.identified(caller_of("m", "id", [("authorization", header)], host="h", remaining=None))
    assert "wrong" not in refused.value.message
    assert calls.admission.refused["unauthenticated"] == 1


def test_a_secret_shows_in_no_representation() -> None:
    assert SEARCH not in repr(asking(SEARCH))


async def test_requests_of_a_key_at_once(path: Path) -> None:
    """The third is refused; of other keys any number may be there; what has ended makes room."""
    keys = ApiKeys(str(path))
    calls = Calls(timeout=1.0, bounds=Bounds(), identify=keys.identify)
    batch, search = calls.identified(asking(BATCH)), calls.identified(asking(SEARCH))
    with calls.running(batch):
        with calls.running(batch):
            with pytest.raises(Overloaded, match="2 requests with this API key"), calls.running(batch):
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
    ("text", "told"),
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
def test_a_file_that_makes_no_sense_is_refused(path: Path, text: str, told: str) -> None:
    """The message names the entry and the field, and never quotes a value: it may be a key."""
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as refused:
        ApiKeys(str(path))
    assert SEARCH not in str(refused.value)


def test_a_new_key_is_known_by_what_is_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds the entry only, as the file takes it."""
    errors = io.StringIO()
    with redirect_stderr(errors):
        assert new_key.main(['a "quoted" name', "--priority", "bulk", "--requests-at-once", "3"]) == 0
    entry, secret = capsys.readouterr().out, errors.getvalue().split()[-1]
    assert secret not in entry
    assert tomllib.loads(entry)["keys"][0]["requests_at_once"] == 3
    path.write_text(FILE + entry)
    assert ApiKeys(str(path)).identify(asking(secret)).key == 'a "quoted" name'


def test_a_priority_that_there_is_none() -> None:
    with pytest.raises(InvalidInput, match="selvage-priority"):
        asking(SEARCH, selvage_priority="soon")
