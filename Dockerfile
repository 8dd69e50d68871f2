# vitreous in a container, for the CPU or for CUDA:
#
#   make image
#   make image IMAGE=vitreous:cuda BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04
#   docker run --rm -v "$PWD:/work" vitreous predict runs/demo photo.jpg
#   docker run --rm --gpus all -v "$PWD:/work" vitreous:cuda train paca_b0 photos
#   docker run --rm -p 8000:8000 -v "$PWD:/work" vitreous serve runs/demo --host 0.0.0.0
ARG BASE=ubuntu:24.04
FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/vitreous
ENV PATH=/opt/vitreous/bin:$PATH PYTHONUNBUFFERED=1

# What is installed: extras as in pyproject.toml.
ARG EXTRAS=web,det,log,export
# Where pip finds a torch without CUDA's libraries; if it is not given, the usual one is installed.
ARG PIP_EXTRA_INDEX_URL
COPY pyproject.toml README.md LICENSE vitreous_command.py /src/
COPY vitreous /src/vitreous
RUN pip install --no-cache-dir "/src[${EXTRAS}]" && rm -rf /src

# Not as root: what it writes into the mounted folder belongs to this user, or to the one given with --user.
RUN useradd --create-home vitreous
USER vitreous
WORKDIR /work
ENTRYPOINT ["vitreous"]
CMD ["--help"]
