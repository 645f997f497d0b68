"""The contract selvage.v1 over gRPC."""
