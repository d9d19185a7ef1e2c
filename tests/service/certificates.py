"""Certificates for the loopback interface, made by OpenSSL."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from system import program


@dataclass(frozen=True)
class Certificate:
    """A certificate that nobody but itself has signed, and its key."""

    file: Path
    key: Path

    def trusted(self) -> ssl.SSLContext:
        """What a client connects with that trusts this certificate alone."""
        return ssl.create_default_context(cafile=str(self.file))

    def seen_by(self, port: int) -> bool:
        """Whether this is the certificate that a server shows."""
        return ssl.get_server_certificate(("127.0.0.1", port)).split() == self.file.read_text().split()


def certificate(
    folder: Path, name: str, password: str | None = None, signed_by: Certificate | None = None
) -> Certificate:
    """Make one, signed by itself unless another one is given; skips the test where there is no OpenSSL."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    signer = [] if signed_by is None else ["-CA", str(signed_by.file), "-CAkey", str(signed_by.key)]
    locked = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        [
            program("openssl"),
            "req",
            "-x509",
            "-days",
            "2",
            *kind,
            *locked,
            *names,
            *signer,
            "-keyout",
            made.key,
            "-out",
            made.file,
        ],
        check=True,
        capture_output=True,
    )
    return made
