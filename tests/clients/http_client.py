"""Clients of HTTP as a program: a question a line, an answer a line. Runs in a venv of its own, with its own packages.

Knows nothing of this project: only the address. One process answers many questions, since imports take seconds.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

Told = dict[str, Any]


def openai_embed(url: str, key: str, retries: int = 0, **asked: Any) -> Told:
    """By the plain client and by the asynchronous one."""
    from openai import AsyncOpenAI, OpenAI

    choice: Told = {"base_url": f"{url}/v1", "api_key": key, "max_retries": retries}

    async def concurrently() -> Any:
        async with AsyncOpenAI(**choice) as client:
            return await client.embeddings.create(**asked)

    with OpenAI(**choice) as client:
        plain = client.embeddings.create(**asked)
    return {
        "plain": [each.embedding for each in plain.data],
        "async": [each.embedding for each in asyncio.run(concurrently()).data],
        "tokens": plain.usage.prompt_tokens,
        "model": plain.model,
    }


def openai_models(url: str, key: str) -> Told:
    """The list, and each of it."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        listed = [each.id for each in client.models.list()]
        return {"listed": listed, "retrieved": [client.models.retrieve(each).id for each in listed]}


def langchain(url: str, key: str, model: str, texts: list[str], **options: Any) -> Told:
    """Documents and a query."""
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(base_url=f"{url}/v1", api_key=key, model=model, max_retries=0, **options)
    return {
        "plain": embeddings.embed_documents(texts),
        "async": asyncio.run(embeddings.aembed_documents(texts)),
        "query": embeddings.embed_query(texts[0]),
    }


def llama_openai(url: str, key: str, model: str, texts: list[str], **options: Any) -> Told:
    """The same by LlamaIndex."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    return _llama(OpenAILikeEmbedding(model, api_base=f"{url}/v1", api_key=key, max_retries=0, **options), texts)


def llama_tei(url: str, key: str, model: str, texts: list[str], **options: Any) -> Told:
    """And by its client of text-embeddings-inference."""
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    return _llama(TextEmbeddingsInference(model_name=model, base_url=url, auth_token=key, **options), texts)


def _llama(embedding: Any, texts: list[str]) -> Told:
    return {
        "plain": embedding.get_text_embedding_batch(texts),
        "async": asyncio.run(embedding.aget_text_embedding_batch(texts)),
        "query": embedding.get_query_embedding(texts[0]),
    }


def cohere_embed(url: str, key: str, **asked: Any) -> Told:
    """All types that were asked for."""
    import cohere

    async def concurrently() -> Any:
        async with cohere.AsyncClientV2(key, base_url=url, max_retries=0) as client:
            return await client.embed(**asked)

    plain = cohere.ClientV2(key, base_url=url, max_retries=0).embed(**asked)
    return {
        "plain": plain.embeddings.dict(by_alias=True, exclude_none=True),
        "async": asyncio.run(concurrently()).embeddings.dict(by_alias=True, exclude_none=True),
        "texts": plain.texts,
        "tokens": plain.meta.billed_units.input_tokens,
    }


def cohere_embed_first(url: str, key: str, **asked: Any) -> Told:
    """By the client of version 1, without types and with them."""
    import cohere

    client = cohere.Client(key, base_url=url, max_retries=0)
    plain, typed = client.embed(**asked), client.embed(**asked, embedding_types=["float", "ubinary"])
    return {
        "kinds": [plain.response_type, typed.response_type],
        "plain": plain.embeddings,
        "typed": typed.embeddings.dict(by_alias=True, exclude_none=True),
        "texts": plain.texts,
    }


def cohere_rerank(url: str, key: str, **asked: Any) -> Told:
    """By version 2, plain and asynchronous, and by version 1."""
    import cohere

    async def concurrently() -> Any:
        async with cohere.AsyncClientV2(key, base_url=url, max_retries=0) as client:
            return await client.rerank(**asked)

    return {
        "plain": _ranks(cohere.ClientV2(key, base_url=url, max_retries=0).rerank(**asked)),
        "async": _ranks(asyncio.run(concurrently())),
        "first": _ranks(cohere.Client(key, base_url=url, max_retries=0).rerank(**asked)),
    }


def _ranks(told: Any) -> list[list[Any]]:
    return [[each.index, each.relevance_score] for each in told.results]


def hub_features(url: str, key: str, text: str | list[str], **options: Any) -> Told:
    """feature_extraction, plain and asynchronous."""
    from huggingface_hub import AsyncInferenceClient, InferenceClient

    async def concurrently() -> Any:
        async with AsyncInferenceClient(url, token=key) as client:
            return await client.feature_extraction(text, **options)

    return {
        "plain": InferenceClient(url, token=key).feature_extraction(text, **options).tolist(),
        "async": asyncio.run(concurrently()).tolist(),
    }


def hub_similarity(url: str, key: str, sentence: str, others: list[str]) -> Told:
    from huggingface_hub import InferenceClient

    return {"plain": InferenceClient(url, token=key).sentence_similarity(sentence, others)}


def hub_labels(url: str, key: str, text: str, **options: Any) -> Told:
    from huggingface_hub import InferenceClient

    told = InferenceClient(url, token=key).text_classification(text, **options)
    return {"plain": [asdict(each) for each in told]}


def hub_endpoint(url: str, key: str) -> Told:
    """What the server tells of itself."""
    from huggingface_hub import InferenceClient

    client = InferenceClient(url, token=key, provider="hf-inference")
    return {"healthy": client.health_check(), "info": client.get_endpoint_info()}


DOES: dict[str, Callable[..., Told]] = {
    each.__name__: each
    for each in (
        openai_embed,
        openai_models,
        langchain,
        llama_openai,
        llama_tei,
        cohere_embed,
        cohere_embed_first,
        cohere_rerank,
        hub_features,
        hub_similarity,
        hub_labels,
        hub_endpoint,
    )
}


def failed(error: Exception) -> Told:
    """The class by which a caller knows it, and what it tells."""
    kind = type(error)
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    return {
        "error": f"{kind.__module__.partition('.')[0]}.{kind.__name__}",
        "status": getattr(error, "status_code", None) or getattr(response, "status_code", None),
        "code": getattr(error, "code", None),
        "param": getattr(error, "param", None),
        "body": getattr(error, "body", None),
        "text": str(error),
        "retry_after": headers.get("retry-after"),
        "request_id": headers.get("x-request-id"),
    }


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = DOES[asked.pop("does")](**asked)
        except Exception as error:
            told = failed(error)
        print(json.dumps(told), file=answers, flush=True)
