"""The worker's end of the link to its frontends: gRPC streams, jobs that come in, and outcomes that go out."""
