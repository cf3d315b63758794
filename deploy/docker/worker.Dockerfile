# Workers for jobs and the supervisor of endpoints, with everything that their child processes and engines need. The CUDA
# libraries come with torch; the host provides the driver. Build it from the project's root:
#   docker build --file deploy/docker/worker.Dockerfile --tag slipstream-worker .
FROM python:3.11.14-slim-bookworm AS packages
COPY requirements.txt requirements-web.txt requirements-tracing.txt /
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir "$(grep '^torch==' /requirements.txt)" \
 && /opt/venv/bin/pip install --no-cache-dir --requirement /requirements.txt --requirement /requirements-tracing.txt

FROM python:3.11.14-slim-bookworm
# The CPU kernels and Triton's launchers are compiled at run time, so the image needs a compiler.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --home-dir /data slipstream \
 && install --directory --owner slipstream /run/slipstream
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY manage.py ./
COPY kernels ./kernels
COPY engine ./engine
COPY workers ./workers
COPY platform ./platform
RUN /opt/venv/bin/python -m compileall -q manage.py kernels engine workers platform
# hadolint ignore=DL3064  # TOKENIZERS_PARALLELISM is not a secret
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app:/app/platform \
    PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE \
    TOKENIZERS_PARALLELISM=false \
    XDG_CACHE_HOME=/data/cache \
    TRITON_CACHE_DIR=/data/cache/triton \
    DJANGO_SETTINGS_MODULE=control.core.settings.production \
    SLIPSTREAM_DATA_DIR=/data \
    SLIPSTREAM_METRICS_PORT=9100 \
    PROMETHEUS_DISABLE_CREATED_SERIES=true
USER 10001
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9100/livez', timeout=4)"]
# This worker gets its wake-ups from Redis; `python manage.py runworker` polls instead, and
# `python manage.py supervise_deployments` runs the endpoints. On SIGTERM the worker returns its job to the queue within
# SLIPSTREAM_DRAIN_SECONDS.
CMD ["celery", "-A", "workers.celery_app", "worker", "--loglevel", "INFO"]
