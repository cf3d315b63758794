# API, console and gateway, without torch or a compiler. Build it from the project's root:
#   docker build --file deploy/docker/web.Dockerfile --tag slipstream-web .
FROM python:3.11.14-slim-bookworm AS packages
COPY requirements-web.txt requirements-tracing.txt /
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --requirement /requirements-web.txt --requirement /requirements-tracing.txt

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 10001 --create-home --home-dir /data slipstream \
 && install --directory --owner slipstream /run/slipstream
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY manage.py ./
COPY platform ./platform
COPY workers/__init__.py workers/contracts.py workers/kinds.py workers/model_folders.py ./workers/
COPY workers/model_sizes.py workers/model_types.py workers/parent_death.py workers/planning.py workers/stored_weights.py ./workers/
COPY workers/hyperparameters ./workers/hyperparameters
COPY workers/exports ./workers/exports
RUN /opt/venv/bin/python -m compileall -q manage.py platform workers
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app:/app/platform \
    PYTHONUNBUFFERED=1 \
    DJANGO_SETTINGS_MODULE=control.core.settings.production \
    SLIPSTREAM_DATA_DIR=/data \
    PROMETHEUS_MULTIPROC_DIR=/run/slipstream \
    PROMETHEUS_DISABLE_CREATED_SERIES=true \
    UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN=60
USER 10001
EXPOSE 8000
# This is not /readyz, because an unavailable database is no reason to restart the container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
# On SIGTERM uvicorn accepts no more connections and has a minute to finish its requests.
CMD ["uvicorn", "control.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--lifespan", "on", \
     "--ws", "none", "--no-server-header"]
