# The server and its dependencies only; models are mounted at /models.
#   docker build -t anytime-linear .
#   docker run --read-only --publish 127.0.0.1:8000:8000 --volume ./folder:/models:ro \
#       --volume ./keys.txt:/run/secrets/api-keys:ro --env ANYTIME_API_KEYS_FILE=/run/secrets/api-keys anytime-linear
# Without keys the server does not start: `sh deploy/keys.sh` makes keys.txt; deploy/SECURITY.md says more about keys.
# ANYTIME_INSECURE=true serves every client without keys; use it behind a proxy that checks clients.
# When the server stops, it answers open predictions at once. ANYTIME_PORT sets a port other than 8000; the health check
# reads it too. /usr/share/anytime-linear lists the contents of the image and their licences.
ARG BASE=python:3.12-slim

FROM ${BASE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build

# /opt/venv has no pip; the pip of the base image installs into it. Only wheels are installed: there is no compiler.
COPY requirements-serve.lock ./
RUN python -m venv --without-pip /opt/venv \
 && python -m pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-compile \
        -r requirements-serve.lock

# The tools that build the wheel and list the image's contents are pinned with the development tools and stay in this
# stage. The build fails if a pin that they need is missing from this list.
ARG TOOLS="hatchling packaging pathspec pluggy tomlkit trove-classifiers \
        cyclonedx-bom arrow attrs boolean-py chardet cyclonedx-python-lib defusedxml fqdn idna isoduration jsonpointer \
        jsonschema jsonschema-specifications lark license-expression lxml packageurl-python pip-requirements-parser \
        py-serializable pyparsing python-dateutil referencing rfc3339-validator rfc3986-validator rfc3987-syntax rpds-py \
        six sortedcontainers typing-extensions tzdata uri-template webcolors"
COPY requirements.lock ./
RUN awk -v names="$TOOLS" 'BEGIN { split(names, each); for (i in each) wanted[each[i]] } \
        /^[a-z]/ { split($0, pin, /[=; ]/); keep = pin[1] in wanted } keep' requirements.lock > tools.lock \
 && python -m venv --without-pip /opt/tools \
 && python -m pip --python /opt/tools/bin/python install --require-hashes --only-binary :all: -r tools.lock

COPY pyproject.toml README.md LICENSE ./
COPY models models
COPY service service
RUN python -m pip --python /opt/tools/bin/python wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && python -m pip --python /opt/venv/bin/python install --no-index --no-deps --no-compile dist/*.whl

# The server uses only the browser scripts and styles of fastapi-offline. The tests of dependencies are removed too.
RUN find /opt/venv/lib -path '*/site-packages/fastapi_offline/*' -type f ! -name 'swagger-ui*' -delete \
 && find /opt/venv -type d \( -name tests -o -empty \) -prune -exec rm -r {} +

# Lists exactly the packages that remain in the image, with all of their licences.
COPY deploy/licences.py ./
RUN mkdir /opt/licences \
 && /opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
        --output-file /opt/licences/sbom.cdx.json /opt/venv/bin/python \
 && /opt/venv/bin/python licences.py /opt/licences/THIRD_PARTY.txt

FROM ${BASE}
LABEL org.opencontainers.image.title="anytime-linear" \
      org.opencontainers.image.description="Linear predictions that are available at every deadline" \
      org.opencontainers.image.licenses="MIT" \
      anytime-linear.sbom="/usr/share/anytime-linear/sbom.cdx.json" \
      anytime-linear.licences="/usr/share/anytime-linear/THIRD_PARTY.txt"
COPY --from=builder /opt/licences /usr/share/anytime-linear
COPY --from=builder /opt/venv /opt/venv
# Neither a slim base image nor /opt/venv has bytecode. Importing the server, and what it imports later, once writes the
# bytecode of their modules: a third of that of all modules.
RUN /opt/venv/bin/python -c "import http.client, anytime.cli.main, anytime.glm.search, anytime_service.cli, \
    anytime_service.server.run, anytime_service.sessions.redis_store, opentelemetry.sdk.trace.export, \
    opentelemetry.exporter.otlp.proto.http.trace_exporter"

# Nothing writes files from here on, so the root file system may be read-only and the user needs no home.
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
