# The server and what it needs, no more: models come from outside, into /models.
#   docker build -t anytime-linear .
#   docker run --read-only --publish 127.0.0.1:8000:8000 --volume ./folder:/models:ro \
#       --env ANYTIME_API_KEYS=sha256:$(printf %s "$KEY" | sha256sum | cut -c 1-64) anytime-linear
# Without a key it listens to itself alone, inside its container; --env ANYTIME_INSECURE=true serves whoever asks.
# What is open is answered before it stops, at once. A port other than 8000 is told by ANYTIME_PORT, which the health
# check reads too.
ARG BASE=python:3.12-slim

FROM ${BASE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build

# /opt/venv has no pip of its own; the one of the base installs into it. Only wheels: there is no compiler here.
COPY requirements-serve.lock ./
RUN python -m venv --without-pip /opt/venv \
 && python -m pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-compile \
        -r requirements-serve.lock

# The wheel's builder is pinned with the development tools. A pin that it needs and that is not named here stops the build.
COPY requirements.lock ./
RUN awk '/^[a-z]/ { keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } keep' \
        requirements.lock > hatchling.lock \
 && python -m venv --without-pip /opt/hatchling \
 && python -m pip --python /opt/hatchling/bin/python install --require-hashes --only-binary :all: -r hatchling.lock

COPY pyproject.toml README.md LICENSE ./
COPY models models
COPY service service
RUN python -m pip --python /opt/hatchling/bin/python wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && python -m pip --python /opt/venv/bin/python install --no-index --no-deps --no-compile dist/*.whl

# Of plotly only the script for browsers is used, and nothing of what plotly itself uses. The tests of dependencies go.
# Bytecode is compiled once, here, and never compared with its source again.
RUN find /opt/venv/lib -path '*/site-packages/plotly/*' -type f ! -name plotly.min.js -delete \
 && rm -rf /opt/venv/lib/python*/site-packages/_plotly_utils /opt/venv/lib/python*/site-packages/narwhals \
        /opt/venv/share/jupyter /opt/venv/etc \
 && find /opt/venv -type d \( -name tests -o -empty \) -prune -exec rm -r {} + \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="anytime-linear" \
      org.opencontainers.image.description="Linear predictions that are ready whenever the deadline strikes" \
      org.opencontainers.image.licenses="MIT"
COPY --from=builder /opt/venv /opt/venv
# Slim bases have no bytecode of the standard library: importing the server once leaves that of the modules it uses.
RUN /opt/venv/bin/python -c "import http.client, anytime.cli.main, anytime_service.server"

# Nothing is written from here on, so the root file system may be read-only and the user needs no home.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ANYTIME_HOST=0.0.0.0 \
    ANYTIME_PORT=8000
WORKDIR /models
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os, ssl; e = os.environ; a = ('127.0.0.1', int(e['ANYTIME_PORT'])); c = h.HTTPSConnection(*a, timeout=2, context=ssl._create_unverified_context()) if e.get('ANYTIME_SSL_CERTFILE') else h.HTTPConnection(*a, timeout=2); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["anytime", "serve"]
CMD ["/models"]
