"""text-embeddings-inference's requests and replies, a file a kind of them; `routes.py` has the paths."""
