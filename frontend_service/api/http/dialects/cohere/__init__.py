"""Cohere's requests and replies, with what Jina and vLLM add, a file a kind of them; `routes.py` has the paths."""
