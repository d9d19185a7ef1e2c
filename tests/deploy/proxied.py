"""The shipped configurations of proxies, run by the real programs, before services that listen."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.serving import Running
from system import answers, free_port, program, started

__all__ = ["CONFIGURATIONS", "PROXIES", "Proxy", "proxied"]

CONFIGURATIONS = Path(__file__).parents[2] / "deploy" / "proxies"


@dataclass(frozen=True)
class Proxy:
    """How one program is run with its shipped configuration, in which nothing but places is replaced.

    Attributes
    ----------
    file : the configuration.
    places : what stands there for addresses and folders, and what is put there instead. `{port}` is where it listens,
        `{admin}` another free port, `{folder}` where it may write.
    replica : what names the replicas there, and what names one of them: `{port}` is where it listens, `{number}` its
        own.
    check, run : arguments; `{file}` is the configuration with everything in its place.
    """

    file: str
    places: Mapping[str, str]
    replica: tuple[str, str]
    check: str
    run: str

    def placed(self, replicas: Sequence[int], port: int, folder: Path) -> Path:
        """Write the configuration with the places of this machine.

        Raises
        ------
        AssertionError
            What is to be replaced is not in it.
        """
        text = (CONFIGURATIONS / self.file).read_text(encoding="utf-8")
        shipped, one = self.replica
        named = "\n".join(one.format(port=each, number=i) for i, each in enumerate(replicas))
        here = {name: to.format(port=port, admin=free_port(), folder=folder) for name, to in self.places.items()}
        for name, to in {shipped: named, **here}.items():
            assert name in text, f"{self.file} no longer has {name!r}"
            text = text.replace(name, to)
        path = folder / self.file
        path.write_text(text, encoding="utf-8")
        return path


PROXIES: Mapping[str, Proxy] = {
    "nginx": Proxy(
        "nginx.conf",
        {"listen 8080;": "listen 127.0.0.1:{port};", " /tmp/": " {folder}/"},
        ("server anytime:8000 max_fails=0;", "server 127.0.0.1:{port} max_fails=0;"),
        "-t -e stderr -c {file}",
        "-e stderr -c {file} -g 'daemon off;'",
    ),
    "haproxy": Proxy(
        "haproxy.cfg",
        {"bind :8080": "bind 127.0.0.1:{port}"},
        (
            "server-template replica 4 anytime:8000 resolvers system",
            "server-template replica{number}- 1 127.0.0.1:{port} resolvers system",
        ),
        "-c -f {file}",
        "-db -f {file}",
    ),
    "envoy": Proxy(
        "envoy.yaml",
        {
            "{address: 0.0.0.0, port_value: 8080}": "{{address: 127.0.0.1, port_value: {port}}}",
            "port_value: 9901": "port_value: {admin}",
        },
        (
            "              - endpoint: {address: {socket_address: {address: anytime, port_value: 8000}}}",
            "              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}",
        ),
        "--mode validate -l error -c {file}",
        "--use-dynamic-base-id --concurrency 2 -l error -c {file}",
    ),
}


@contextmanager
def proxied(name: str, replicas: Sequence[int], folder: Path) -> Iterator[Running]:
    """Run a proxy before services on these ports; skips where it is not installed.

    Raises
    ------
    AssertionError
        The program refuses the configuration, or does not start.
    """
    proxy, binary, port = PROXIES[name], program(name), free_port()
    file = proxy.placed(replicas, port, folder)
    checked = subprocess.run(
        [binary, *shlex.split(proxy.check.format(file=file))], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with started([binary, *shlex.split(proxy.run.format(file=file))], lambda: answers(port)):
        yield Running(port)
