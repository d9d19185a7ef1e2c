"""Routes of the console, of `/docs` and of their files; the pages load nothing from other servers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from anytime_service.api.console.assets import LIBRARIES, library_asset, page_assets, send
from anytime_service.api.openapi import problem_responses
from anytime_service.http.problems import problem_response
from anytime_service.schemas.problem import Problem

__all__ = [
    "router",
]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # plotly and Swagger UI insert their own style sheets
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

PAGE = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
OWN = {"Cache-Control": "no-cache"}  # the browser revalidates each time and gets 304 until the file changes
LIBRARY = {"Cache-Control": "public, max-age=604800"}

router = APIRouter(tags=["console"], responses=problem_responses(500))


def _documented(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    return {200: {"description": description, "content": content}, 304: {"description": "The client has it already"}}


# Not coroutines: FastAPI runs them in threads, because compressing a file would block the event loop.


@router.get("/", response_class=Response, responses=_documented("The page", "text/html"))
def console_page(request: Request) -> Response:
    """Send the console page: a model's curve, its steps, and a prediction that improves as groups arrive."""
    return send(request, page_assets()["index.html"], PAGE)


@router.get("/docs", response_class=Response, include_in_schema=False)
def docs_page(request: Request) -> Response:
    """Send the page that documents the routes of the service."""
    return send(request, page_assets()["docs.html"], PAGE)


@router.get(
    "/console/{file}",
    response_class=Response,
    responses=_documented("The file", "text/javascript", "text/css", "image/svg+xml") | problem_responses(404, 422),
)
def console_file(request: Request, file: str) -> Response:
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
