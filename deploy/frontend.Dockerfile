# The frontend: CPU only, no model library, no model files. Built from the top folder:
#   docker build --file deploy/frontend.Dockerfile .
ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE}

WORKDIR /build
# Packages first, by their hashes: a change of the sources fetches none of them again.
COPY deploy/locks/frontend.txt .
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement frontend.txt
COPY . .
RUN pip install --no-index --no-deps --no-build-isolation .

# Away from the sources, so that the installed packages are what runs.
WORKDIR /
# A number, so that orchestrators can see that it is not root.
USER 10001:10001
EXPOSE 50051 8080
ENTRYPOINT ["python", "-m", "frontend_service"]

# Last, so that another commit builds nothing else anew.
ARG BASE
ARG VERSION=0.1.0
ARG COMMIT=""
LABEL org.opencontainers.image.title="Selvage frontend" \
      org.opencontainers.image.description="gRPC and HTTP APIs for embedding, reranking and late interaction; CPU only" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.base.name="${BASE}"
