"""What the environment says about connections: the proxy of a server and the trusted certificates, for both protocols.

httpx and websockets read the same variables differently. The client reads them once, by these rules, and passes the
result to both:

- `HTTPS_PROXY` or `HTTP_PROXY` for the scheme of the server, else `ALL_PROXY`; lower case too, and the system's
  settings on Windows and macOS. SOCKS needs the packages `python-socks` and `socksio`.
- `NO_PROXY` lists hosts, domains with their subdomains, addresses and ranges (`10.0.0.0/8`, `fd00::/8`), each with or
  without a port, or `*`.
- `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's certificates.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

from anytime_service.client.errors import ClientError
from anytime_service.urls import server_url

PORTS = {"http": 80, "https": 443}
"""Default ports; the system's list of services may be missing."""

_SOCKS = ("socks5", "socks5h")
_SCHEMES = ("http", "https", *_SOCKS)


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy for a server at `http://...` or `https://...`; None without one.

    Raise ClientError, which names the variable, if the proxy is invalid or not supported.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(kind)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS[parts.scheme]
    exceptions = proxies.get("no", "").lower().replace(",", " ").split()
    if not proxy or any(each == "*" or _matches(host, port, each) for each in exceptions):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    name = next((name for name in os.environ if name.lower() == f"{kind}_proxy"), f"the system's {kind} proxy")
    expected = f"expected http://HOST:PORT, https:// or socks5://, or {parts.hostname} in NO_PROXY"
    found = server_url(proxy, _SCHEMES)
    if found is None:
        raise ClientError(f"{name} is {without_password(proxy)!r}; {expected}")
    if found.scheme in _SOCKS and not (find_spec("python_socks") and find_spec("socksio")):
        raise ClientError(
            f"{name} is {without_password(proxy)!r}, and a package for SOCKS is missing; "
            f"pip install python-socks[asyncio] socksio, or list {parts.hostname} in NO_PROXY"
        )
    return proxy


def _matches(host: str, port: int, entry: str) -> bool:
    """Return whether an entry of `NO_PROXY` contains a host."""
    has_port = entry.count(":") == 1 or "]:" in entry  # an address of IPv6 has more colons
    name, _, wanted = entry.rpartition(":") if has_port else (entry, "", "")
    name = name.strip("[]")
    if wanted and wanted != str(port):
        return False
    with suppress(ValueError):  # a name, not an address
        address = ip_address(host)
        with suppress(ValueError):
            return address in ip_network(name, strict=False)
        return False
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def certificates() -> ssl.SSLContext:
    """Return the context for TLS with the certificates that the environment or the system trusts.

    Raise ClientError, which names the variable, if its file or folder is unreadable or not of certificates.
    """
    for name, exists in (("SSL_CERT_FILE", os.path.isfile), ("SSL_CERT_DIR", os.path.isdir)):
        path = os.environ.get(name)
        if path and not exists(path):
            raise ClientError(f"{name} is {path!r}, which does not exist; expected certificates, or no {name}")
    context = ssl.create_default_context()
    path = os.environ.get("SSL_CERT_FILE")
    if path:
        try:  # OpenSSL itself ignores an invalid file
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise ClientError(f"SSL_CERT_FILE is {path!r}, which is no file of certificates: {error}") from error
    return context


def without_password(url: str) -> str:
    """Return a URL for messages, without user and password; the URL may be invalid."""
    scheme, separator, rest = url.rpartition("://")
    host = rest.partition("/")
    return f"{scheme}{separator}{host[0].rpartition('@')[2]}{host[1]}{host[2]}"
