"""Adapters are models of their own to the frontend; frontends that are bound to a fingerprint serve no other model."""

import pytest
from fake_workers import JOB, FakeWorker, World
from fakes import card
from structlog.testing import capture_logs

from frontend_service.domain.requests import PromptChoice
from frontend_service.settings import FrontendSettings
from shared.errors import UnknownModel, WorkerUnavailable
from support.references import eventually


def worker(scores: bytes, **adapters: str) -> FakeWorker:
    """A worker with adapters, given by name with their fingerprints."""
    fake = FakeWorker(scores)
    fake.adapters = [card(id=name, fingerprint=print_, labels=("score",)) for name, print_ in adapters.items()]
    return fake


async def test_jobs_name_the_adapter_by_its_fingerprint() -> None:
    """Those of the model itself name nothing, and so do requests that name no model."""
    fake = worker(b"1111", one="print-1", two="print-2")
    async with World(fake) as world:
        await world.until(True)
        for name in ("one", "fake", "two", ""):
            await world.run(JOB, name)
        jobs = [job.fingerprint for message in fake.messages for job in message.jobs]
        assert jobs == ["print-1", "", "print-2", ""]
        assert {message.fingerprint for message in fake.messages} == {"f"}
        assert [model.card.id for model in world.fleet.models()] == ["fake", "one", "two"]
        assert world.fleet.workers == {"fake": 1, "one": 1, "two": 1}
        with pytest.raises(UnknownModel, match="no model is called 'three'; there is fake, one, two"):
            world.fleet.model("three")


async def test_adapters_share_what_was_read_of_the_tokenizer() -> None:
    fake = worker(b"1111", one="print-1")
    fake.adapters = [card(id="one", fingerprint="print-1", prompts={"query": "query : "}, labels=("score",))]
    async with World(fake) as world:
        await world.until(True)
        base, adapter = world.fleet.model("fake").tokenizer, world.fleet.model("one").tokenizer
        assert fake.fetched == 1
        assert adapter.tokenizer is base.tokenizer
        assert adapter.prompt(PromptChoice(name="query")) == "query : "
        assert base._card.prompts == {}


async def test_workers_with_other_adapters_are_told_apart() -> None:
    """A job goes to a worker that has its adapter; the base's goes to any of them; one name is one adapter."""
    first, second = worker(b"1111", one="print-1", both="same"), worker(b"2222", two="print-2", both="same")
    async with World(first, second) as world:
        await eventually(lambda: world.fleet.workers == {"fake": 2, "one": 1, "two": 1, "both": 2})
        assert {(await world.run(JOB, "one")).scores for _ in range(5)} == {b"1111"}
        assert {(await world.run(JOB, "two")).scores for _ in range(5)} == {b"2222"}
        await first.server.stop(0)
        await eventually(lambda: "one" not in world.fleet.fingerprints)  # the fleet has chosen anew, too
        with pytest.raises(WorkerUnavailable):
            world.fleet.model("one")
        assert (await world.run(JOB, "both")).scores == b"2222"


async def test_two_adapters_of_one_name_are_not_mixed() -> None:
    """The second stands by until the first has gone."""
    first, second = worker(b"1111", one="print-1"), worker(b"2222", one="print-2")
    async with World(first) as world:
        await world.until(True)
        world.retarget(first, second)
        await second.server.start()
        await eventually(lambda: world.fleet.workers == {"fake": 2, "one": 2})
        assert {(await world.run(JOB, "one")).scores for _ in range(10)} == {b"1111"}
        await first.server.stop(0)
        await eventually(lambda: world.fleet.fingerprints.get("one") == "print-2")
        assert (await world.run(JOB, "one")).scores == b"2222"
        await second.server.stop(0)


async def test_pins_choose_among_adapters() -> None:
    """What is not pinned is not served, though the worker has it."""
    fake = worker(b"1111", one="a" * 64, two="b" * 64)
    async with World(fake, pins={"b" * 64}) as world:
        await world.until(True)
        assert world.fleet.fingerprints == {"two": "b" * 64}
        assert (await world.run(JOB, "two")).scores == b"1111"
        assert [job.fingerprint for message in fake.messages for job in message.jobs] == ["b" * 64]


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
            world.retarget(other, wanted)
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


def test_the_flag_takes_one_whole_fingerprint_or_several(capsys: pytest.CaptureFixture[str]) -> None:
    """A part of one would serve nothing, and say so only once a worker is there."""
    for arguments, fingerprints in (
        ([], ()),
        (["--fingerprint", WANTED], (WANTED,)),
        (["--fingerprint", f"{WANTED},{OTHER}"], (WANTED, OTHER)),
        (["--fingerprint", WANTED, "--fingerprint", OTHER], (WANTED, OTHER)),
    ):
        assert FrontendSettings.read(arguments).fingerprint == fingerprints
    for value in ("abc", WANTED[:12], WANTED.upper(), "minilm"):
        with pytest.raises(SystemExit):
            FrontendSettings.read(["--fingerprint", value])
        message = capsys.readouterr().err
        assert ("--fingerprint" in message, "whole fingerprint" in message) == (True, True)
