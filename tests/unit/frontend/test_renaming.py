"""Names of ours in another API's words."""

import pytest
from asgi import HttpApi, Worker

from frontend_service.api.renaming import Names, renamed

NAMES: Names = ((r"\btexts\[(\d+)\]", r"inputs[\1]"), (r"^texts$", "inputs"), (r"\btruncate would", '"END" would'))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("texts", "inputs"),
        ("texts[3] has 5 tokens", "inputs[3] has 5 tokens"),
        ("no model is called 'texts[3]'", "no model is called 'texts[3]'"),
        ("""'texts[1]', "it's texts[2]" and texts[3]""", """'texts[1]', "it's texts[2]" and inputs[3]"""),
        (r"'\'texts[1]' of texts[2]", r"'\'texts[1]' of inputs[2]"),
        ("the model's limit is 3, texts[1] isn't: 'texts[2]'", "the model's limit is 3, inputs[1] isn't: 'texts[2]'"),
        ("texts[1] is 'a'; truncate would cut it", "inputs[1] is 'a'; \"END\" would cut it"),
    ],
)
def test_names_change_and_quoted_words_do_not(ours: str, theirs: str) -> None:
    assert renamed(ours, NAMES) == theirs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v2/embed", {"texts": ["a"]}),
        ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "b"}]}),
        ("/score", {"text_1": "a", "text_2": "b"}),
    ],
)
@pytest.mark.parametrize("name", ["documents[7]", "texts[0] has dimensions", "queries documents"])
async def test_a_models_name_is_told_as_it_was_sent(path: str, body: dict[str, object], name: str) -> None:
    """It may look like one of our names."""
    told = await HttpApi(Worker()).ask(path, body | {"model": name})
    assert told.status == 404
    assert name in told.json.get("error", told.json)["message"]
