"""What both clients are made with: limits, keys, metadata, addresses; and what their methods show."""

import inspect
import math

import pytest

from selvage import AsyncClient, Client
from support.fake_frontend import KINDS, FakeFrontend, connected, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(1300)


async def test_every_call_says_for_whom_it_is(fake: FakeFrontend, kind: str) -> None:
    """Key, fairness key, priority, own metadata, and a new request id each."""
    async with connected(
        kind, fake.address, key="secret", fairness_key="shop", priority="bulk", metadata={"traceparent": "00-1"}
    ) as client:
        await client.embed(MANY)
        assert "secret" not in repr(client.client)
        assert "secret" not in repr(client.client.settings)
    for headers in fake.metadata:
        assert headers["authorization"] == "Bearer secret"
        assert (headers["selvage-key"], headers["selvage-priority"], headers["traceparent"]) == ("shop", "bulk", "00-1")
    assert len({headers["x-request-id"] for headers in fake.metadata}) == 3
    async with connected(kind, fake.address, metadata=[("x-request-id", "mine")]) as client:
        await client.models()
    assert fake.metadata[-1]["x-request-id"] == "mine"


async def test_a_client_of_no_sense_is_refused(kind: str) -> None:
    """When it is made."""
    for options in ({"timeout": -1}, {"timeout": math.nan}, {"retries": -1}, {"in_flight": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            KINDS[kind]("127.0.0.1:1", **options)
    for options in ({"key": "secret\n"}, {"fairness_key": "Zoë"}, {"metadata": {"X-Own": "1"}}):
        with pytest.raises(ValueError, match="metadata") as raised:
            KINDS[kind]("127.0.0.1:1", **options)
        assert "secret" not in str(raised.value)


async def test_a_key_in_plain_text_is_warned_of(kind: str) -> None:
    """Where it may leave the own network."""
    with pytest.warns(UserWarning, match="plain text") as caught:
        KINDS[kind]("api.example.com:443", key="secret")
    assert caught[0].filename == __file__
    KINDS[kind]("api.example.com:443", key="secret", tls=True)
    KINDS[kind]("10.1.2.3:50051", key="secret")


def test_methods_show_what_they_take(kind: str) -> None:
    """With their options and a docstring, on either client."""
    for name in ("embed", "rerank", "score", "max_sim", "classify", "tokenize", "embed_stream"):
        method = getattr(KINDS[kind], name)
        assert method.__doc__
        parameters = inspect.signature(method).parameters
        assert next(iter(parameters)) == "self"
        assert "model" in parameters
        assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        options = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
        assert [name for name in options if f"`{name}`" not in method.__doc__] == []
    assert {name for name in dir(Client) if name[0] != "_"} == {name for name in dir(AsyncClient) if name[0] != "_"}


async def test_an_unknown_option_is_named(kind: str) -> None:
    """Before anything is sent, with the options that there are."""
    async with connected(kind, "127.0.0.1:1") as client:
        for method in (client.embed, client.stream, lambda texts, **options: client.rerank("a", texts, **options)):
            with pytest.raises(TypeError, match="there is no option 'dimension'; there are model, "):
                await method(["a"], dimension=3)
