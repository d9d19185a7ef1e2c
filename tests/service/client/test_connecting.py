"""How the client connects, over HTTP and WebSocket alike: redirects, addresses of a name, and lost connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from anytime_service.client import Client, ReplyError

CALLS: dict[str, Callable[[Client], Any]] = {
    "websocket": lambda client: client.predict({"speed": [1.0]}),
    "with a deadline": lambda client: client.predict({"speed": [1.0]}, deadline_ms=60_000),
    "get": lambda client: client.models(),
    "query": lambda client: client.plan("brake", budget=3),
    "post": lambda client: client.session().open(),
}
"""Requests of every kind that the client sends; without a deadline in sight."""


@contextmanager
def listener(respond: Callable[[str], str]) -> Iterator[tuple[int, list[str]]]:
    """Answer each connection by its request head; yield the port and the heads."""
    heads: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed
                    return
                with connection:
                    heads.append(connection.recv(8192).decode("latin-1"))
                    connection.sendall(respond(heads[-1]).encode("latin-1"))

        thread = Thread(target=run)
        thread.start()
        yield listening.getsockname()[1], heads
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


# redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "there",
    [
        "https://anytime.example:8443",  # another scheme, as most proxies redirect
        "http://localhost:{other}",  # another host
        "http://127.0.0.1:{other}",  # another port
        "http://127.0.0.1:{port}/root",  # another path
    ],
)
def test_every_request_says_where_the_address_redirects_and_no_key_goes_there(there: str, status: int) -> None:
    def redirect(head: str) -> str:
        path = head.split()[1]
        target = there.format(other=other, port=port)
        return f"HTTP/1.1 {status} Moved\r\nLocation: {target}{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    with (
        listener(lambda _: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as (other, elsewhere),
        listener(redirect) as (port, here),
        Client(f"http://127.0.0.1:{port}", api_key="sesame") as client,
    ):
        target = there.format(other=other, port=port)
        for call in CALLS.values():
            before = len(here)
            with pytest.raises(ReplyError, match=rf"redirects to {target} \({status}\); expected the address"):
                call(client)
            assert len(here) == before + 1
        assert elsewhere == []
        assert all("Bearer sesame" in head for head in here)


def test_a_redirect_to_a_path_shows_the_whole_address_and_no_password() -> None:
    locations = iter(["/login?next=%2Fstream", "https://user:secret@anytime.example/stream"])

    def redirect(_: str) -> str:
        return f"HTTP/1.1 302 Found\r\nLocation: {next(locations)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    with listener(redirect) as (port, _), Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ReplyError, match=rf"redirects to http://127\.0\.0\.1:{port}/login \(302\)"):
            client.predict({"speed": [1.0]})
        with pytest.raises(ReplyError, match=r"redirects to https://anytime\.example \(302\)"):
            client.predict({"speed": [1.0]})
