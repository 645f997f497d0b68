"""A worker's adapters are models of their own to the frontend: named, listed, told apart, and sent to who has them."""

import pytest
from fake_workers import JOB, FakeWorker, World
from fakes import card

from frontend_service.domain.requests import PromptChoice
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
        await eventually(lambda: world.fleet.workers["one"] == 0)
        with pytest.raises(WorkerUnavailable):
            world.fleet.model("one")
        assert (await world.run(JOB, "both")).scores == b"2222"


async def test_two_adapters_of_one_name_are_not_mixed() -> None:
    """The second stands by until the first has gone."""
    first, second = worker(b"1111", one="print-1"), worker(b"2222", one="print-2")
    async with World(first) as world:
        await world.until(True)
        world.fleet._targets = [first.address, second.address]
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
