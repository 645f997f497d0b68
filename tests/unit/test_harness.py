"""What members of a stack are started with; the processes themselves are tests/e2e's."""

from harness.stack import worker_flags


def test_a_worker_for_each_device() -> None:
    """On ports one after the other, with what all of them share."""
    shared = {"model": "m", "listen": "[::1]:50061", "device": "auto"}
    assert worker_flags(shared, 1, ["cuda:0", "cuda:1"]) == [
        {"model": "m", "listen": "[::1]:50061", "device": "cuda:0"},
        {"model": "m", "listen": "[::1]:50062", "device": "cuda:1"},
    ]


def test_workers_without_devices_share_what_is_said() -> None:
    """Each takes any free port, or the one that nobody has named."""
    for listen in ({"listen": "127.0.0.1:0"}, {}):
        assert worker_flags({"model": "m", **listen}, 2) == [{"model": "m", **listen}] * 2
