"""A part: what the device can do, as {device, torch, flops_per_second, bytes_per_second}."""

import torch

from benchmarks.accelerator import options
from benchmarks.device_limits import bandwidth, product_flops

if __name__ == "__main__":
    given = options.parser("benchmarks.accelerator.limits", __doc__).parse_args()
    device = torch.device(given.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    flops, memory = product_flops(device), bandwidth(device)
    rates = {"flops_per_second": round(flops), "bytes_per_second": round(memory)}
    options.write(given.out, {"device": name, "torch": torch.__version__} | rates)
    print(f"{name}: {flops / 1e12:,.4g} TFLOP/s, {memory / 1e12:,.3g} TB/s")
