# The frontend: CPU only, no model library, no model files. Built from the top folder:
#   docker build --file deploy/frontend.Dockerfile .
FROM python:3.11-slim

WORKDIR /build
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[frontend]'

# Away from the sources, so that the installed packages are what runs.
WORKDIR /
# A number, so that orchestrators can see that it is not root.
USER 10001:10001
EXPOSE 50051
ENTRYPOINT ["python", "-m", "frontend_service"]
