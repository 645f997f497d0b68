"""The door of the contract selvage.v1: gRPC."""
