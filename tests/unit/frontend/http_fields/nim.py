"""Requests of NVIDIA's NIMs for embeddings and for reranks."""

from http_fields.cohere import MODEL
from http_fields.field import Request
from http_fields.vllm import CROSS_ENCODER, IMAGES, LONG, honoured, meaningless, refused

SOURCE = "docs.nvidia.com/nim/nemo-retriever/{}/reference.html"
EMBEDDINGS = tuple(
    Request(
        original="NVIDIA NIM, embeddings",
        source=SOURCE.format("text-embedding/2.2.0"),
        path=path,
        body={"input": ["a b"]},
        fields=(
            MODEL,
            honoured("input", ["c"]),
            honoured("input_type", "query"),
            refused("modality", "image", "there is no model of images; `text` is accepted"),
            refused("embedding_type", "int8", "`float` is accepted"),
            honoured("encoding_format", "base64"),
            honoured("dimensions", 4),
            honoured("truncate", "START", input=[LONG]),
            meaningless("user", "somebody", "nobody is watched; selvage-key is for shares"),
        ),
    )
    for path in ("/v1/embeddings", "/embeddings")
)
RANKING = Request(
    original="NVIDIA NIM, ranking",
    source=SOURCE.format("text-reranking/2.3"),
    path="/v1/ranking",
    body={"query": {"text": "a"}, "passages": [{"text": "b c"}, {"text": "d"}]},
    fields=(
        MODEL,
        honoured("query", {"text": "c"}),
        refused("query.image", "data:image/png;base64,AAAA", IMAGES),
        honoured("passages", [{"text": "d"}], "images are refused"),
        honoured("truncate", "END", passages=[{"text": LONG}]),
    ),
    card=CROSS_ENCODER,
)
REQUESTS = (*EMBEDDINGS, RANKING)
