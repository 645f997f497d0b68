"""What becomes of a message: replies, errors that pass, texts at fault, targets that die. Each text has one outcome."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage import errors
from selvage.bulk import Failed
from selvage.bulk.sender import Sender, Target, Work, messages
from selvage.messages.inputs import ENTRY_LETTERS
from support.bulk_fakes import FakeClient, embeddings, refuse_bad
from support.fake_frontend import dense_row

TEXTS = [f"text {i}" for i in range(40)]
Made = Callable[..., Sender]


@pytest.fixture
def made() -> Iterator[Made]:
    """Senders, closed at the end."""
    opened: list[Sender] = []

    def make(*clients: FakeClient, message_texts: int = 4, in_flight: int = 2, patience: float = 60.0) -> Sender:
        targets = [Target(f"fake:{place}", client) for place, client in enumerate(clients, 1)]
        options = {"fingerprint": "f" * 64, "message_texts": message_texts}
        opened.append(Sender(targets, {"output": ["dense"]}, in_flight=in_flight, patience=patience, **options))
        return opened[-1]

    yield make
    for sender in opened:
        sender.close()


def embedded(sender: Sender, texts: Sequence[Any]) -> Work:
    work = Work(texts, "text", keep_empty=False)
    sender.submit(work)
    assert sender.wait(work, 240)
    return work


def check(work: Work, texts: Sequence[str]) -> None:
    """Each text that is not bad has its vector, in order."""
    good = [text for text in texts if not text.startswith("bad")]
    assert work.table()["dense"].to_pylist() == [dense_row(text).tolist() for text in good]
    assert work.rows_with_vectors() == [row for row, text in enumerate(texts) if not text.startswith("bad")]


def test_each_row_has_a_vector_or_a_reason(made: Made) -> None:
    """What is sent is what has a letter, as strings."""
    client = FakeClient()
    sender = made(client)
    work = embedded(sender, ["one", "", None, " \n", 5, "\ud800", "two"])
    assert work.reasons == [
        *(None, "EMPTY", "EMPTY", "EMPTY"),
        "column 'text' is of type int, not a string",
        "column 'text' has half of a character at 0",
        None,
    ]
    assert work.bad_rows() == [4, 5]
    assert client.sent == [["one", "two"]]
    assert sender.answered == 2
    assert embedded(sender, [""]).table() is None
    kept = Work(["", None], "text", keep_empty=True)
    sender.submit(kept)
    assert sender.wait(kept)
    assert kept.reasons == [None, None]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", [errors.InputTooLarge, errors.ResultTooLarge, errors.LimitExceeded])
def test_a_text_at_fault_is_bad_alone(made: Made, named: bool, kind: type[errors.SelvageError]) -> None:
    """Whether the error names it, or halves find it."""
    texts = ["bad" if i in (0, 7, 8, 9) else text for i, text in enumerate(TEXTS)]
    client = FakeClient()

    def refuse(sent: list[str], _: int) -> None:
        if named:
            refuse_bad(sent, 0)
        elif "bad" in sent:
            raise kind("out of memory")

    client.script = refuse
    work = embedded(made(client), texts)
    check(work, texts)
    reason = "INPUT_TOO_LONG: the text has 602 tokens" if named else f"{kind.default_reason}: out of memory"
    assert {work.reasons[row] for row in work.bad_rows()} == {reason}


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidInput("dimensions is 5", field="dimensions"),
        errors.Denied("the API key is not known"),
        errors.Internal("a bug"),
        errors.LimitExceeded("prompt has 9 letters", field="prompt"),
    ],
)
def test_what_is_wrong_with_every_message_ends_the_work(made: Made, error: errors.SelvageError) -> None:
    """It must not make a bad row of each."""
    client = FakeClient()

    def refuse(*_: Any) -> None:
        raise error

    client.script = refuse
    with pytest.raises(Failed, match=f"^fake:1 refuses this: {error}$"):
        embedded(made(client), TEXTS)


def test_a_target_that_dies_loses_nothing(made: Made) -> None:
    """What it had goes to the other one, and it is asked again."""
    dying, steady, died = FakeClient(), FakeClient(), threading.Event()

    def die(_: list[str], count: int) -> None:
        if count % 3 == 2:
            died.set()
            raise errors.Unavailable("gone", retry_after=0.0)

    dying.script, steady.script = die, lambda *_: died.wait(240) and None
    check(embedded(made(dying, steady), TEXTS * 10), TEXTS * 10)
    assert len(dying.deadlines) > 1  # its model is looked at again


def test_a_target_that_returns_with_another_model_ends_the_work(made: Made) -> None:
    """Vectors of two models would lie side by side."""
    client = FakeClient()

    def replaced(*_: Any) -> None:
        client.fingerprint = "e" * 64
        raise errors.Unavailable("gone", retry_after=0.0)

    client.script = replaced
    line = "fake:1: its model has the fingerprint eeeeeeeeeeeeeeee, the work was begun with ffff"
    with pytest.raises(Failed, match=line):
        embedded(made(client), TEXTS)


def test_overload_waits_as_long_as_it_is_told(made: Made) -> None:
    """Nothing is sent until then; however often, it is no silence."""
    client, times = FakeClient(), list[float]()

    def full(_: list[str], count: int) -> None:
        times.append(time.monotonic())
        if count < 3:
            raise errors.Overloaded("try later", retry_after=0.1)

    client.script = full
    check(embedded(made(client, in_flight=1, patience=0.0), TEXTS), TEXTS)
    assert [after - before >= 0.1 for before, after in pairwise(times[:4])] == [True] * 3


def test_a_service_gets_no_more_than_it_takes(made: Made) -> None:
    """Of eight messages at a time it refuses those beyond three, which wait for answers and not for a clock."""
    client, lock, open_calls, refusals = FakeClient(), threading.Lock(), [0], [0]

    def few(texts: list[str], _: int) -> Any:
        with lock:
            if open_calls[0] >= 3:
                refusals[0] += 1
                raise errors.Overloaded("too many", retry_after=60.0)
            open_calls[0] += 1
        time.sleep(0.005)
        with lock:
            open_calls[0] -= 1
        return embeddings(texts)

    client.script = few
    texts = TEXTS * 40
    check(embedded(made(client, message_texts=8, in_flight=8), texts), texts)
    assert 0 < refusals[0] < len(client.sent) / 2


def test_silence_is_borne_so_long(made: Made) -> None:
    """Then the work ends with what the last target says; a target that was away for long is used again."""
    client = FakeClient()

    def away(_: list[str], count: int) -> None:
        if count < 20:
            raise errors.Unavailable("refused", retry_after=0.0)

    client.script = away
    check(embedded(made(client), TEXTS), TEXTS)
    client.dead = errors.Unavailable("refused")
    client.script = lambda *_: away([], 0)
    with pytest.raises(Failed, match=r"^no target has answered for 0.2 s \(patience\); the last one says: refused$"):
        embedded(made(client, patience=0.2), TEXTS)


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_message_that_fails_at_each_try_ends_the_work(made: Made, code: grpc.StatusCode) -> None:
    """By statuses that a broken connection has too, and though others are answered: after five of its own failures."""
    texts, tries, cards = ["broken", *TEXTS], list[str](), list[str]()
    client, broken = FakeClient(), errors.Unavailable("the stream ended", code=code, retry_after=0.0)
    card = client.model

    def model(*, timeout: float) -> Any:
        cards.append("asked")
        if len(cards) < 8:  # of a target that has not come up, which is no fault of the message
            raise broken
        return card(timeout=timeout)

    def fail(sent: list[str], most: int) -> None:
        if "broken" in sent and len(tries) < most:
            tries.append("failed")
            raise broken

    client.model = model  # type: ignore[method-assign]
    client.script = lambda sent, _: fail(sent, 4)
    check(embedded(made(client), texts), texts)
    tries.clear()
    client.script = lambda sent, _: fail(sent, 1000)
    with pytest.raises(Failed, match=r"^fake:1 refuses this: the stream ended$"):
        embedded(made(client, patience=2.0), texts)
    assert len(tries) == 5


def test_idle_time_is_no_silence(made: Made) -> None:
    """What passed while there was nothing to send counts no more once there is something again."""
    client = FakeClient()
    sender = made(client, patience=0.3)
    embedded(sender, TEXTS)
    time.sleep(0.4)
    failures = [errors.Unavailable("gone", retry_after=0.0)]

    def once(*_: Any) -> None:
        if failures:
            raise failures.pop()

    client.script = once
    check(embedded(sender, TEXTS), TEXTS)


def test_messages_of_several_works_are_under_way_together(made: Made) -> None:
    """As many as may be, and each work comes back to who waits for it."""
    client, together = FakeClient(), threading.Barrier(3, timeout=240)

    def meet(texts: list[str], _: int) -> Any:
        together.wait()
        return embeddings(texts)

    client.script = meet
    sender = made(client, in_flight=3)
    works = [Work([text], "text", keep_empty=False) for text in ("one", "two", "three")]
    for work in works:
        sender.submit(work)
    for work, text in zip(reversed(works), ("three", "two", "one"), strict=True):
        assert sender.wait(work, 240)
        check(work, [text])


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 9), st.integers(1, 200))
def test_messages_cut_texts_up(lengths: list[int], most: int, letters: int) -> None:
    """Each once; a message is over its letters with one text only; the longest first."""
    texts = {row: "x" * length for row, length in enumerate(lengths)}
    cut = list(messages(texts, most=most, letters=letters))
    assert sorted(row for message in cut for row in message) == list(texts)
    sizes = [len(texts[row]) for message in cut for row in message]
    assert sizes == sorted(sizes, reverse=True)
    for message in cut:
        assert 1 <= len(message) <= most
        assert len(message) == 1 or sum(len(texts[row]) + ENTRY_LETTERS for row in message) <= letters
