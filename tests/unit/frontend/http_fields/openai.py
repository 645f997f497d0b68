"""OpenAI's requests, field by field."""

from http_fields.field import Fate, Field, Request

SOURCE = "platform.openai.com/docs/api-reference/embeddings/create, openapi.yaml 2.3.0"
FIELDS = (
    Field(name="input", fate=Fate.HONOURED, value="a b c"),
    Field(name="model", fate=Fate.HONOURED, value="another", why="another model than the one served is 404"),
    Field(name="dimensions", fate=Fate.HONOURED, value=4),
    Field(name="encoding_format", fate=Fate.HONOURED, value="base64"),
    Field(name="user", fate=Fate.WITHOUT_MEANING, value="somebody", why="nobody is watched; selvage-key is for shares"),
)
REQUESTS = tuple(
    Request(original="OpenAI, CreateEmbeddingRequest", source=SOURCE, path=path, body={"input": "a"}, fields=FIELDS)
    for path in ("/v1/embeddings", "/embeddings")
)
