"""Frontends that are bound to a fingerprint serve no other model, whichever worker is ready first."""

import pytest
from fake_workers import FakeWorker, World
from structlog.testing import capture_logs

from frontend_service.settings import FrontendSettings
from shared.errors import WorkerUnavailable
from support.references import eventually

WANTED, OTHER = "a" * 64, "b" * 64


async def test_a_worker_with_other_weights_is_not_used_though_it_is_first() -> None:
    """The error and one line of the log name both fingerprints."""
    other = FakeWorker(b"1111", fingerprint=OTHER)
    wanted = FakeWorker(b"2222", fingerprint=WANTED)
    with capture_logs() as lines:
        async with World(other, pins={WANTED}) as world:
            await world.until(False)
            await eventually(lambda: any(line["event"] == "worker not ready" for line in lines))
            refusal = f"its fake has the fingerprint {OTHER}, --fingerprint is {WANTED}"
            with pytest.raises(WorkerUnavailable, match=refusal):
                world.fleet.model("fake")
            world.fleet._targets = [other.address, wanted.address]
            await wanted.server.start()
            await world.until(True)
            assert {(await world.run()).scores for _ in range(10)} == {b"2222"}
            assert world.fleet.fingerprints == {"fake": WANTED}
            await wanted.server.stop(0)
            await world.until(False)
    assert [line["why"] for line in lines if line.get("target") == other.address] == [refusal]
    assert (other.fetched, other.messages) == (0, [])


async def test_a_worker_that_comes_back_with_other_weights_is_not_used() -> None:
    """The name stays known meanwhile: callers are told to come again, not that there is no such model."""
    worker = FakeWorker(b"1111", fingerprint=WANTED)
    async with World(worker, pins={WANTED}) as world:
        await world.until(True)
        await worker.server.stop(0)
        await world.until(False)
        replaced = FakeWorker(b"2222", fingerprint=OTHER)
        replaced.server.add_insecure_port(worker.address)
        await replaced.server.start()
        link = world.fleet._links[worker.address]
        await eventually(lambda: OTHER in link.why)
        with pytest.raises(WorkerUnavailable, match="--fingerprint is"):
            world.fleet.model("fake")
        await replaced.server.stop(0)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ([], ()),
        (["--fingerprint", WANTED], (WANTED,)),
        (["--fingerprint", f"{WANTED},{OTHER}"], (WANTED, OTHER)),
        (["--fingerprint", WANTED, "--fingerprint", OTHER], (WANTED, OTHER)),
    ],
)
def test_the_flag_takes_one_or_several(arguments: list[str], read: tuple[str, ...]) -> None:
    assert FrontendSettings.read(arguments).fingerprint == read


@pytest.mark.parametrize("value", ["abc", WANTED[:12], WANTED.upper(), "minilm"])
def test_what_is_no_whole_fingerprint_ends_the_start(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of one would serve nothing, and say so only once a worker is there."""
    with pytest.raises(SystemExit):
        FrontendSettings.read(["--fingerprint", value])
    assert "--fingerprint" in (told := capsys.readouterr().err)
    assert "whole fingerprint" in told
