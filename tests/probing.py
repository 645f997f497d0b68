"""Asks a server for its health again and again, in a process of its own; prints the longest wait in seconds so far."""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE = 0.02

if __name__ == "__main__":
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub, slowest = health_pb2_grpc.HealthStub(channel), 0.0
        while True:
            start = time.monotonic()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
            slowest = max(slowest, time.monotonic() - start)
            print(slowest, flush=True)
            time.sleep(PAUSE)
