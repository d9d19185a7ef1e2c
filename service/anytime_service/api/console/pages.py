"""The console: its page, `/docs`, their files, and what the page shows of a model.

The pages load nothing from other servers. Of a model they show R² of each prefix with its bounds, the shapes of its
columns, and a synthetic row for trying it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel
from scipy.special import ndtr, ndtri
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from anytime.errors import ValuesError
from anytime.evaluation.page import charts
from anytime.evaluation.page.pictures import ModelCurve, curve_chart, model_curve, shape_charts
from anytime.evaluation.shapes import ColumnShape, column_shapes, drawn
from anytime.features.expansion import Column
from anytime.inference.sharing import covariances
from anytime.model.model import Model
from anytime.types import Label
from anytime_service.api.control import Service
from anytime_service.api.openapi import problem_responses
from anytime_service.errors import FieldError
from anytime_service.http.responses import PageRoute, blank, check_query, problem_response

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

PAGE = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
DOCS = PAGE | {  # Swagger UI inserts its own style sheets
    "Content-Security-Policy": POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
}
OWN = {"Cache-Control": "no-cache"}  # the browser revalidates each time and gets 304 until the file changes
LIBRARY = {"Cache-Control": "public, max-age=604800"}

WIDEST = 1000  # maximum number of features that are drawn jointly: the factorisation costs the cube of their number
RIDGE = 1e-6  # added to the diagonal of the correlations, so that the factorisation succeeds with duplicate columns
DIGITS = 2  # decimals after the first digit of a feature's deviation: few enough for a person to read and type
SLICE = 65_536  # bytes

router = APIRouter(responses=problem_responses(500), dependencies=[Depends(check_query)], route_class=PageRoute)


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
def assets() -> Mapping[str, Asset]:
    """Return the files by name, without those of `LIBRARIES` whose package is not installed."""
    paths = [charts.STYLE, *sorted(STATIC.iterdir())]
    for package, file in LIBRARIES.values():
        with suppress(PackageNotFoundError):
            paths.append(Path(str(distribution(package).locate_file(file))))
    return {path.name: Asset.read(path) for path in paths if path.suffix in MEDIA_TYPES and path.is_file()}


def send(request: Request, asset: Asset, headers: Mapping[str, str]) -> Response:
    """Return the response with a file, or 304 if the client has it already."""
    packed = _accepts_gzip(request.headers.get("accept-encoding", ""))
    # Each encoding has its own ETag, because a strong ETag identifies exact bytes.
    etag = f'"{asset.digest}-gzip"' if packed else f'"{asset.digest}"'
    sent = {"ETag": etag, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff", **headers}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=sent)
    encoding = {"Content-Encoding": "gzip"} if packed else {}
    content = asset.packed if packed else asset.content
    return SlicedResponse(content, headers=encoding | sent, media_type=asset.media_type)


class SlicedResponse(Response):
    """A response that is sent in slices as the client reads them; a connection stores one slice of shared content."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, max(len(self.body), 1), SLICE):
            more = at + SLICE < len(self.body)
            await send({"type": "http.response.body", "body": bytes(self.body[at : at + SLICE]), "more_body": more})
            await asyncio.sleep(0)


def _accepts_gzip(accepted: str) -> bool:
    qualities = dict(part.partition(";")[::2] for part in accepted.lower().replace(" ", "").split(","))
    return qualities.get("gzip", "q=0") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")


def _documented(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    return {
        200: {"description": description, "content": content},
        304: {"description": "Not modified: the client has it"},
    }


@router.get(
    "/",
    summary="Send the console page",
    tags=["console"],
    response_class=Response,
    responses=_documented("The page", "text/html"),
)
async def console_page(request: Request) -> Response:
    """Send the console page: a model's curve, its steps, and a prediction that improves as groups arrive."""
    return send(request, assets()["index.html"], PAGE)


@router.get("/docs", response_class=Response, include_in_schema=False)
async def docs_page(request: Request) -> Response:
    return send(request, assets()["docs.html"], DOCS)


@router.get("/openapi.json", response_class=Response, include_in_schema=False)
async def openapi_document(request: Request) -> Response:
    """Send the OpenAPI document; `root_path` is its server, if the service has one."""
    root: str = request.scope.get("root_path", "").rstrip("/")
    return JSONResponse(request.app.openapi() | ({"servers": [{"url": root}]} if root else {}))


@router.get(
    "/console/{file}",
    summary="Send a file of the pages",
    tags=["console"],
    response_class=Response,
    responses=_documented("The file", "text/javascript", "text/css", "image/svg+xml") | problem_responses(404, 422),
)
async def console_file(request: Request, file: str) -> Response:
    """Send a file of the console or of `/docs`."""
    asset = assets().get(file)
    if asset is None and file in LIBRARIES:
        detail = f"{LIBRARIES[file][0]} is not installed next to the server; pip install 'anytime-linear[serve]'"
        return problem_response(blank(404, detail))
    if asset is None:
        raise HTTPException(404)
    return send(request, asset, LIBRARY if file in LIBRARIES else PAGE if file.endswith(".html") else OWN)


@dataclass(frozen=True)
class DrawnCurve(ModelCurve):
    """The curve of a model with its chart, an HTML element `figure`."""

    chart: str


@dataclass(frozen=True)
class DrawnShape(ColumnShape):
    """The shape of a column with its charts, HTML elements `figure`."""

    charts: tuple[str, ...]


@router.get(
    "/models/{name}/curve",
    summary="Return the cost and R² of each prefix",
    tags=["models"],
    responses=problem_responses(404, 422),
)
async def curve(name: str, service: Service) -> DrawnCurve:
    """Return cost and R² of each prefix: in training, cross-validated, and guaranteed."""
    found = model_curve(service.registry.get(name))
    return DrawnCurve(**vars(found), chart=curve_chart(found).svg())


class Sample(BaseModel, frozen=True):
    """A synthetic row: the values of every group that has features, in the format of a prediction request.

    `correlated` is whether the features are drawn with the correlations of the training data, or independently.
    """

    model: str
    version: str
    seed: int
    correlated: bool
    groups: dict[str, tuple[Label | None, ...]]


@router.get(
    "/models/{name}/sample", summary="Draw a synthetic row", tags=["models"], responses=problem_responses(404, 422)
)
async def sample_row(
    name: str,
    service: Service,
    seed: Annotated[int, Query(ge=0, le=2**32 - 1, description="The same seed gives the same row.")] = 0,
) -> Sample:
    """Draw a synthetic row with the means and deviations of the training data, for trying the model."""
    return sample(service.registry.get(name), seed)


@router.get(
    "/models/{name}/shape",
    summary="Return the shape of a column",
    tags=["models"],
    responses=problem_responses(404, 422),
)
async def column_shape(
    name: str,
    service: Service,
    column: Annotated[str, Query(description="Name of a column.")],
    prefix: Annotated[int | None, Query(description="Number of steps that count; all by default.")] = None,
    score: Annotated[
        int | None, Query(ge=0, description="Index of the score that is drawn; up to 5 by default.")
    ] = None,
) -> DrawnShape:
    """Return the shape of a column: what each of its values contributes to the scores of a prefix."""
    model = service.registry.get(name)
    try:
        shape = column_shapes(model, prefix, column)[0]
    except ValuesError as error:
        exists = prefix is None or 0 <= prefix <= model.steps
        field = "column" if exists and column not in model.groups.features else "prefix"
        raise FieldError(field, str(error)) from error
    names = model.score_names
    if score is not None and score >= len(names):
        raise FieldError("score", f"score is {score}; expected 0 to {len(names) - 1}")
    charts = shape_charts(model, shape, None if score is None else (score,))
    return DrawnShape(**vars(shape), charts=tuple(chart.svg() for chart in charts))


def sample(model: Model, seed: int) -> Sample:
    """Draw a row of raw values, jointly normal with the training correlations if the model has them.

    A column of categories has the level at the same quantile of the levels' shares, a column with hinges the value at
    the same quantile of its knots. A column with mean m in (0, 1) and variance m(1 - m) counts as binary: it is 1 with
    probability m.
    """
    groups, expansion = model.groups, model.expansion
    firsts = np.array([start for start, _ in expansion.spans])
    z = np.random.default_rng(seed).standard_normal(len(firsts))
    covariance = covariances(model, every=True) if len(model.prefixes.mean) <= WIDEST else None
    if covariance is not None:
        scale = model.prefixes.scale[firsts]
        z = np.linalg.cholesky(covariance(firsts) / np.outer(scale, scale) + RIDGE * np.eye(len(z))) @ z
    row: list[Label | None] = [
        _drawn(model, column, start, deviate)
        for column, start, deviate in zip(expansion.columns, firsts.tolist(), z.tolist(), strict=True)
    ]
    values = {
        group.name: tuple(row[columns])
        for group, columns in zip(groups.groups, groups.slices, strict=True)
        if group.features
    }
    return Sample(model=model.name, version=model.version, seed=seed, correlated=covariance is not None, groups=values)


def _drawn(model: Model, column: Column, first: int, deviate: float) -> Label | None:
    """Return the value of a column at a standard normal deviate; `first` is its first term."""
    mean, scale = model.prefixes.mean[first:], model.prefixes.scale[first:]
    if model.terms.features[first] in model.manifest.redundant.constant:
        return column.shown(float(drawn(column, np.array([0.5]), mean, scale)[0]))
    if column.is_binary(mean, scale):
        return float(deviate > ndtri(1 - mean[0]))
    value = float(drawn(column, np.array([ndtr(deviate)]), mean, scale)[0])
    if column.reader is not None:
        return column.shown(value)
    return round(value, max(0, DIGITS - math.floor(math.log10(scale[0]))))
