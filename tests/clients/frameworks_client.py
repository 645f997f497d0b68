"""Frameworks in front of HTTP APIs as a program: a question a line, an answer a line, in a venv of its own.

Knows nothing of this project: only the address. One process answers many questions, since imports take seconds.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


def haystack_ranker(url: str, key: str, model: str, query: str, documents: list[str], **options: Any) -> Answer:
    """Haystack's CohereRanker, which always says `max_tokens_per_doc: 4096`."""
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    ranker = CohereRanker(model=model, api_key=Secret.from_token(key), api_base_url=url, **options)
    passages = [Document(content=document, meta={"place": place}) for place, document in enumerate(documents)]
    ranked = ranker.run(query=query, documents=passages)["documents"]
    return {"ranks": [[passage.meta["place"], passage.score] for passage in ranked]}


def rerankers_api(url: str, key: str, model: str, provider: str, query: str, documents: list[str]) -> Answer:
    """The package rerankers, asking an API of a provider's shape at another address."""
    from rerankers import Reranker

    ranker = Reranker(model, model_type=provider, api_key=key, api_provider=provider, url=url, verbose=0)
    ranked = ranker.rank(query=query, docs=documents, doc_ids=list(range(len(documents))))
    return {"ranks": [[result.document.doc_id, result.score] for result in ranked.results]}


def langchain_cohere(url: str, key: str, model: str, texts: list[str]) -> Answer:
    """LangChain's CohereEmbeddings, plain and asynchronous."""
    from langchain_cohere import CohereEmbeddings

    embeddings = CohereEmbeddings(model=model, cohere_api_key=key, base_url=url, max_retries=1)
    return {
        "plain": embeddings.embed_documents(texts),
        "async": asyncio.run(embeddings.aembed_documents(texts)),
        "query": embeddings.embed_query(texts[0]),
    }


def langchain_infinity(url: str, key: str, model: str, texts: list[str]) -> Answer:
    """LangChain's InfinityEmbeddings, which asks for /embeddings."""
    from langchain_community.embeddings import InfinityEmbeddings

    embeddings = InfinityEmbeddings(model=model, infinity_api_url=url)
    return {
        "plain": embeddings.embed_documents(texts),
        "async": asyncio.run(embeddings.aembed_documents(texts)),
        "query": embeddings.embed_query(texts[0]),
    }


def litellm_embed(url: str, key: str, model: str, texts: list[str], **options: Any) -> Answer:
    """LiteLLM's embeddings; the provider stands before the model's name."""
    import litellm

    asked = {"model": model, "input": texts, "api_base": url, "api_key": key, **options}
    plain = litellm.embedding(**asked)
    concurrent = asyncio.run(litellm.aembedding(**asked))
    return {name: [row["embedding"] for row in reply.data] for name, reply in (("plain", plain), ("async", concurrent))}


def litellm_rerank(url: str, key: str, model: str, query: str, documents: list[str], **options: Any) -> Answer:
    """LiteLLM's reranks."""
    import litellm

    asked = {"model": model, "query": query, "documents": documents, "api_base": url, "api_key": key, **options}
    replies = (litellm.rerank(**asked), asyncio.run(litellm.arerank(**asked)))
    plain, concurrent = ([[row["index"], row["relevance_score"]] for row in reply.results] for reply in replies)
    return {"ranks": plain, "async": concurrent}


DOES: dict[str, Callable[..., Answer]] = {
    function.__name__: function
    for function in (
        haystack_ranker,
        rerankers_api,
        langchain_cohere,
        langchain_infinity,
        litellm_embed,
        litellm_rerank,
    )
}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when it is imported
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = DOES[question.pop("does")](**question)
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
