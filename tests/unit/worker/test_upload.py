"""The upload of a step to a device that need not be there."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from gpu_worker.device import transfer
from gpu_worker.device.transfer import TYPES, Upload


def test_all_arrays_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type and shape, empty ones and those of one number, which may have a stride of 0."""
    monkeypatch.setattr(transfer, "to_device", lambda host, _: host.clone())
    upload = Upload(torch.device("xpu"))
    arrays = [np.arange(size).astype(kind).reshape(-1, 1) for kind in TYPES for size in (0, 1, 2, 70)]
    arrays += [as_strided(np.arange(1).astype(kind), strides=(0,)) for kind in TYPES]
    uploads = [upload.add_array(each) for each in arrays]
    upload.send()
    for array, uploaded in zip(arrays, uploads, strict=True):
        assert uploaded.tensor.shape == array.shape
        assert np.array_equal(uploaded.tensor.numpy(), array)
        assert uploaded.tensor.numpy().dtype == array.dtype
