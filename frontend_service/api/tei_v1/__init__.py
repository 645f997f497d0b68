"""tei.v1, the contract of text-embeddings-inference, over gRPC."""
