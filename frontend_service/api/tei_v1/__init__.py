"""The contract tei.v1, that of text-embeddings-inference, over gRPC."""
