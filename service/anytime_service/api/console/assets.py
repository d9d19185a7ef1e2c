"""Files of the console's pages: compressed once, identified by a hash, and sent in an encoding that the client accepts.

Only the compressed form is stored. Every browser accepts it; the server decompresses it for other clients.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

__all__ = [
    "LIBRARIES",
    "Asset",
    "library_asset",
    "page_assets",
    "send",
]

STATIC = Path(__file__).with_name("static")

LIBRARIES: Mapping[str, tuple[str, str]] = {
    "plotly.min.js": ("plotly", "plotly/package_data/plotly.min.js"),
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


@dataclass(frozen=True)
class Asset:
    """A static file.

    Attributes
    ----------
    packed : its gzipped content.
    digest : hash of its content, from which the ETag is made.
    media_type : its media type.
    """

    packed: bytes
    digest: str
    media_type: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        """Read and compress a file; the largest takes a few tenths of a second."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(gzip.compress(content, mtime=0), digest, MEDIA_TYPES[path.suffix])


@cache
def page_assets() -> Mapping[str, Asset]:
    """Return the files of the pages by name."""
    return {path.name: Asset.read(path) for path in sorted(STATIC.iterdir()) if path.suffix in MEDIA_TYPES}


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
        return Response(asset.packed, headers={"Content-Encoding": "gzip", **sent}, media_type=asset.media_type)
    return Response(gzip.decompress(asset.packed), headers=sent, media_type=asset.media_type)


def _accepts_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
