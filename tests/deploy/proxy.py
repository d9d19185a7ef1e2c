"""Runs the shipped proxy configurations with the real programs, in front of running services."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.project import DEPLOY, ran
from service.serving import Running
from system import answers, free_port, program, started

CONFIGURATIONS = DEPLOY / "proxies"


@dataclass(frozen=True)
class Proxy:
    """How to run one program with its shipped configuration, in which only addresses and folders are replaced.

    Attributes
    ----------
    file : the configuration.
    replacements : replacement by text. `{port}` is the proxy's port, `{admin}` another free port, `{folder}` a
        writable folder.
    replica : the text that names the replicas, and its replacement for one replica with its `{port}` and `{number}`.
    check, run : arguments; `{file}` is the resulting configuration.
    """

    file: str
    replacements: Mapping[str, str]
    replica: tuple[str, str]
    check: str
    run: str

    def write_configuration(self, replicas: Sequence[int], port: int, folder: Path) -> Path:
        """Write the configuration for this machine.

        Raises
        ------
        AssertionError
            A text to be replaced is missing.
        """
        text = (CONFIGURATIONS / self.file).read_text(encoding="utf-8")
        shipped, one = self.replica
        named = "\n".join(one.format(port=each, number=i) for i, each in enumerate(replicas))
        here = {name: to.format(port=port, admin=free_port(), folder=folder) for name, to in self.replacements.items()}
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
def run_proxy(name: str, replicas: Sequence[int], folder: Path) -> Iterator[Running]:
    """Run a proxy in front of services on these ports; skip the test if it is not installed.

    Raises
    ------
    AssertionError
        The program rejects the configuration, or does not start.
    """
    proxy, binary, port = PROXIES[name], program(name), free_port()
    file = proxy.write_configuration(replicas, port, folder)
    ran(binary, *shlex.split(proxy.check.format(file=file)))
    with started([binary, *shlex.split(proxy.run.format(file=file))], lambda: answers(port)):
        yield Running(port)
