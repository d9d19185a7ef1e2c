"""Routes of the console, of `/docs` and of their files; the pages load nothing from other servers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from anytime.evaluation.page import charts
from anytime_service.api.openapi import problem_responses
from anytime_service.http.responses import PageRoute, check_query, problem_response
from anytime_service.schemas.problem import Problem

STATIC = Path(__file__).with_name("static")

LIBRARIES: Mapping[str, tuple[str, str]] = {
    "swagger-ui-bundle.js": ("fastapi-offline", "fastapi_offline/static/swagger-ui-bundle.js"),
    "swagger-ui.css": ("fastapi-offline", "fastapi_offline/static/swagger-ui.css"),
}
"""Files of other packages: the package of each file, and its path in the package. The packages are never imported."""

MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by file suffix; files with other suffixes are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

# Swagger UI inserts its own style sheets.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")

PAGE = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
OWN = {"Cache-Control": "no-cache"}  # the browser revalidates each time and gets 304 until the file changes
LIBRARY = {"Cache-Control": "public, max-age=604800"}

SLICE = 65_536  # bytes

router = APIRouter(
    tags=["console"], responses=problem_responses(500), dependencies=[Depends(check_query)], route_class=PageRoute
)


@dataclass(frozen=True)
class Asset:
    """A static file: its content, plain and gzipped, the hash from which the ETag is made, and its media type.

    All connections share the content, so it does not count as stored for one of them.
    """

    content: bytes
    packed: bytes
    digest: str
    media_type: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, gzip.compress(content, mtime=0), digest, MEDIA_TYPES[path.suffix])


@cache
def page_assets() -> Mapping[str, Asset]:
    paths = [charts.STYLE, *sorted(STATIC.iterdir())]
    return {path.name: Asset.read(path) for path in paths if path.suffix in MEDIA_TYPES}


@cache
def library_asset(name: str) -> Asset | None:
    """Return a file of `LIBRARIES`; None if its package is not installed."""
    package, file = LIBRARIES[name]
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        return None
    return Asset.read(path) if path.is_file() else None


def send(request: Request, asset: Asset, headers: Mapping[str, str]) -> Response:
    """Return the response with a file, or 304 if the client has it already."""
    packed = _accepts_gzip(request.headers.get("accept-encoding", ""))
    # Each encoding has its own ETag, because a strong ETag identifies exact bytes.
    etag = f'"{asset.digest}-gzip"' if packed else f'"{asset.digest}"'
    sent = {"ETag": etag, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff", **headers}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=sent)
    if packed:
        return SlicedResponse(asset.packed, headers={"Content-Encoding": "gzip", **sent}, media_type=asset.media_type)
    return SlicedResponse(asset.content, headers=sent, media_type=asset.media_type)


class SlicedResponse(Response):
    """A response that is sent in slices as the client reads them; a connection stores one slice of shared content."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, max(len(self.body), 1), SLICE):
            more = at + SLICE < len(self.body)
            await send({"type": "http.response.body", "body": bytes(self.body[at : at + SLICE]), "more_body": more})
            await asyncio.sleep(0)


def _accepts_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _documented(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    return {
        200: {"description": description, "content": content},
        304: {"description": "Not modified: the client has it"},
    }


@router.get("/", response_class=Response, responses=_documented("The page", "text/html"))
async def console_page(request: Request) -> Response:
    """Send the console page: a model's curve, its steps, and a prediction that improves as groups arrive."""
    return send(request, page_assets()["index.html"], PAGE)


@router.get("/docs", response_class=Response, include_in_schema=False)
async def docs_page(request: Request) -> Response:
    return send(request, page_assets()["docs.html"], PAGE | {"Content-Security-Policy": DOCS_POLICY})


@router.get("/openapi.json", response_class=Response, include_in_schema=False)
async def openapi_document(request: Request) -> Response:
    """Send the OpenAPI document; `root_path` is its server, if the service has one."""
    document: dict[str, Any] = request.app.openapi()
    root: str = request.scope.get("root_path", "").rstrip("/")
    if root:
        document = {**document, "servers": [{"url": root}]}
    return JSONResponse(document)


@router.get(
    "/console/{file}",
    response_class=Response,
    responses=_documented("The file", "text/javascript", "text/css", "image/svg+xml") | problem_responses(404, 422),
)
async def console_file(request: Request, file: str) -> Response:
    """Send a file of the console or of `/docs`."""
    if file in LIBRARIES:
        library = library_asset(file)
        if library is None:
            detail = f"{LIBRARIES[file][0]} is not installed next to the server; pip install 'anytime-linear[serve]'"
            return problem_response(Problem("about:blank", "Not Found", 404, detail))
        return send(request, library, LIBRARY)
    asset = page_assets().get(file)
    if asset is None:
        raise HTTPException(404)
    return send(request, asset, PAGE if file.endswith(".html") else OWN)
