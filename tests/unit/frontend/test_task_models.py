"""A model with an adapter for each task: a request's task, or the name of a task's model, chooses what computes."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from fakes import card, pipeline_of, words_of

from frontend_service.domain.limits import ExpectedReply
from frontend_service.domain.requests import EmbedRequest, PromptChoice
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.pipeline import ServedModel
from shared.caller import RequestTerms
from shared.errors import UnknownModel, UnsupportedTask
from shared.jobs import Job, JobResult

PROMPTS: dict[str, Any] = {"prompts": {"query": "q ", "document": "d "}, "default_prompt_name": "document"}
MODELS = {"retrieval": "fake-retrieval", "text-matching": "fake-text-matching"}
VECTORS = ("/v1/embeddings", "/v1/multi-vector")
NEEDS = (
    "fake has an adapter for each task, and no default: give a task (retrieval, text-matching) where the API has that "
    "field, or name the model of a task: fake-retrieval, fake-text-matching"
)


class Tasks(Worker):
    """A model with an adapter for each of two tasks. `computed`: the models of jobs."""

    def __init__(self) -> None:
        super().__init__(**PROMPTS, task_models=MODELS)
        self.computed: list[str] = []
        self._models = {"": self.served, "fake": self.served}
        for task, name in MODELS.items():
            own_card = card(**PROMPTS, id=name, fingerprint=name, task_models={task: name})
            texts = self.served.texts.with_card(own_card)
            self._models[name] = ServedModel(card=own_card, texts=texts, queued_tokens=1000, adapter=True)

    def models(self) -> tuple[ServedModel, ...]:
        return tuple({model.card.id: model for model in self._models.values()}.values())

    def model(self, name: str) -> ServedModel:
        if name not in self._models:
            raise UnknownModel(f"no model is called {name!r}", field="model")
        return self._models[name]

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        self.computed.append(model.card.id)
        return await super().run(model, job, expected)


@pytest.mark.parametrize("path", VECTORS)
@pytest.mark.parametrize(
    ("fields", "computes", "sequence"),
    [
        ({"task": "retrieval"}, "fake-retrieval", "[CLS] d a [SEP]"),
        ({"task": "retrieval.query"}, "fake-retrieval", "[CLS] q a [SEP]"),
        ({"task": "retrieval.passage"}, "fake-retrieval", "[CLS] d a [SEP]"),
        ({"task": "text-matching", "model": "fake"}, "fake-text-matching", "[CLS] d a [SEP]"),
        ({"task": "text-matching", "prompt_name": "query"}, "fake-text-matching", "[CLS] q a [SEP]"),
        ({"task": "text-matching", "input_type": "query"}, "fake-text-matching", "[CLS] q a [SEP]"),
        ({"task": "text-matching", "prompt": "e "}, "fake-text-matching", "[CLS] e a [SEP]"),
        ({"model": "fake-retrieval"}, "fake-retrieval", "[CLS] d a [SEP]"),
        ({"model": "fake-retrieval", "input_type": "query"}, "fake-retrieval", "[CLS] q a [SEP]"),
        ({"model": "fake-retrieval", "task": "retrieval.query"}, "fake-retrieval", "[CLS] q a [SEP]"),
    ],
)
async def test_the_task_chooses_the_model_and_the_kind_of_text_the_prompt(
    path: str, fields: dict[str, str], computes: str, sequence: str
) -> None:
    """The reply names the model that has computed."""
    worker = Tasks()
    reply = await HttpApi(worker).ask(path, {"input": "a"} | fields)
    assert reply.status == 200, reply.body
    assert (worker.computed, words_of(worker.jobs[0].tokens)) == ([computes], [sequence])
    assert reply.json["model"] == computes


@pytest.mark.parametrize("path", VECTORS)
@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({}, "model", NEEDS),
        ({"input_type": "query"}, "model", NEEDS),
        ({"task": "clustering"}, "task", "the model has no task 'clustering'; it has retrieval, text-matching"),
        ({"task": "separation"}, "task", "the model has no task 'separation'; it has retrieval, text-matching"),
        ({"task": "code.query"}, "task", "the model has no task 'code.query'; it has retrieval, text-matching"),
        ({"model": "fake-retrieval", "task": "text-matching"}, "task", "no task 'text-matching'; it has retrieval"),
    ],
)
async def test_no_task_and_an_unknown_one_are_refused_with_those_there_are(
    path: str, fields: dict[str, str], field: str, why: str
) -> None:
    worker = Tasks()
    reply = await HttpApi(worker).ask(path, {"input": "a"} | fields)
    assert reply.status == 400
    assert reply.error[0] == field
    assert why in reply.error[1]
    assert worker.computed == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/embed", {"inputs": "a"}, 424),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 424),
        ("/pooling", {"input": "a"}, 400),
        ("/v2/embed", {"texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]}, 400),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 400),
        ("/score", {"text_1": "a", "text_2": "b"}, 400),
    ],
)
async def test_apis_without_a_task_say_which_models_there_are(path: str, body: dict[str, Any], status: int) -> None:
    worker = Tasks()
    reply = await HttpApi(worker).ask(path, body)
    assert (reply.status, worker.computed) == (status, [])
    assert NEEDS in reply.error[1]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": "a"}), ("/embed_all", {"inputs": "a"})],
)
async def test_tei_s_dialect_keeps_the_name_of_a_model(path: str, body: dict[str, Any]) -> None:
    """Any other name is that of the only base, as the original reads none."""
    worker = Tasks()
    await HttpApi(worker).ask(path, body | {"model": "fake-retrieval"})
    assert worker.computed == ["fake-retrieval"]
    reply = await HttpApi(worker).ask(path, body | {"model": "whatever"})
    assert (reply.status, worker.computed) == (424, ["fake-retrieval"])


async def test_a_chat_template_without_a_place_for_a_prompt_names_the_field() -> None:
    service = EmbeddingService(pipeline_of(Worker(message_templates={"": "m {text}"})))
    request = EmbedRequest(texts=["a"], prompt=PromptChoice(literal="find"))
    with pytest.raises(UnsupportedTask, match="no place for a prompt") as refused:
        await service.embed(request, RequestTerms.within(60))
    assert refused.value.field == "prompt"


async def test_over_grpc_the_model_of_a_task_is_named() -> None:
    """Embed of selvage.v1 and of tei.v1 become the same request."""
    worker = Tasks()
    service = EmbeddingService(pipeline_of(worker))
    answer = await service.embed(EmbedRequest(texts=["a"], model="fake-text-matching"), RequestTerms.within(60))
    assert (answer.model, worker.computed) == ("fake-text-matching", ["fake-text-matching"])
    with pytest.raises(UnsupportedTask, match="fake has an adapter for each task") as refused:
        await service.embed(EmbedRequest(texts=["a"]), RequestTerms.within(60))
    assert refused.value.field == "model"


async def test_models_are_listed_with_their_tasks() -> None:
    api = HttpApi(Tasks())
    assert (await api.ask("/v1/models/fake")).json["task_models"] == MODELS
    assert (await api.ask("/v1/models/fake-retrieval")).json["task_models"] == {"retrieval": "fake-retrieval"}
    (entry,) = (await HttpApi(Worker()).ask("/v1/models")).json["data"]
    assert entry["task_models"] == {}


async def test_texts_are_tokenised_without_a_task() -> None:
    """They are the same for all."""
    reply = await HttpApi(Tasks()).ask("/tokenize", {"inputs": "a", "input_type": "query"})
    assert [token["text"] for token in reply.json[0]] == ["[CLS]", "q", "a", "[SEP]"]
