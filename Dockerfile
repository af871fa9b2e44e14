# metrix in a container. CPU:      docker build --target cpu -t metrix .
#                        GPU:      docker build --target gpu -t metrix:gpu .
#                        service:  docker build --target serve -t metrix:serve .
# Use:  docker run --rm -v "$PWD:/work" metrix train photos/ -o runs/a
#       docker run --rm -v "$PWD:/work" -p 8000:8000 -e METRIX_TOKEN=… metrix:serve serve photos.index --host 0.0.0.0
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 METRIX_CACHE=/cache UV_SYSTEM_PYTHON=1 UV_NO_CACHE=1
RUN pip install --no-cache-dir "uv>=0.7" \
    && useradd --create-home --uid 1000 metrix \
    && mkdir /cache /work \
    && chown metrix /cache /work
COPY --from=wheel /wheels /wheels
COPY constraints.txt /constraints.txt
WORKDIR /work
ENTRYPOINT ["metrix"]
CMD ["--help"]

# The default build of torch brings CUDA, several gigabytes.
FROM base AS gpu
RUN uv pip install --constraints /constraints.txt "$(echo /wheels/metrix-*.whl)[search,report,serve,onnx,heic,milvus,tensorboard]"
USER 1000

# Everything that the tests need, for an editor that opens the repository in a container.
FROM python:${PYTHON}-slim AS dev
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends chromium git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 metrix
USER 1000

FROM base AS cpu-packages
RUN uv pip install --constraints /constraints.txt --torch-backend cpu "$(echo /wheels/metrix-*.whl)[search,report,serve,onnx,heic,milvus,tensorboard]"
USER 1000

# A service: it is healthy while it answers.
FROM cpu-packages AS serve
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]

FROM cpu-packages AS cpu
