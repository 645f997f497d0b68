"""The routes of Cohere's API: /v1/rerank and /v2/rerank, which are Jina's and vLLM's too, /v1/embed and /v2/embed."""

from frontend_service.api.http.dialects.cohere.embedding import CohereEmbedBody, embed_endpoint
from frontend_service.api.http.dialects.cohere.ranking import CohereRerankBody, rerank_endpoint
from frontend_service.api.http.errors import COHERE, OPENAI
from frontend_service.api.http.route import Route
from frontend_service.application.frontend import Frontend

RANKED = {"results": [{"index": 1, "relevance_score": 0.97}, {"index": 0, "relevance_score": 0.02}]}


def routes(frontend: Frontend) -> list[Route]:
    """All routes of this dialect."""
    return [
        *(
            Route(
                method="POST",
                path=f"/v{version}/rerank",
                dialect=dialect,
                summary="Documents in the order in which they fit a query",
                body_type=CohereRerankBody,
                example=RANKED,
                endpoint=rerank_endpoint(frontend, version),
            )
            for version, dialect in (("1", OPENAI), ("2", COHERE))
        ),
        *(
            Route(
                method="POST",
                path=f"/v{version}/embed",
                dialect=COHERE,
                summary="A vector for each text, in several types at once",
                body_type=CohereEmbedBody,
                example={"embeddings": example, "texts": ["a text"]},
                endpoint=embed_endpoint(frontend, version),
            )
            for version, example in (("1", [[0.1, -0.2]]), ("2", {"float": [[0.1, -0.2]]}))
        ),
    ]
