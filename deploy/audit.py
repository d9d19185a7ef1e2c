"""Audit of the pins of a lock for known vulnerabilities: `python deploy/audit.py requirements.lock`.

pip-audit queries a service with the interface of OSV. Without a network the script prints one line and exits with 0. It
exits with 1 if it finds a vulnerability, or if anything else prevents the audit of a pin.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["audit", "main", "report", "why_unreachable"]

SERVICE = "https://api.osv.dev/v1/query"
TIMEOUT_S = 10


def main() -> int:
    """Audit the lock and print the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path, help="requirements with hashes")
    parser.add_argument("--url", default=SERVICE, help="address of the service")
    given = parser.parse_args()
    unreachable = why_unreachable(given.url)
    if unreachable:
        print(f"{given.lock} was not audited: the service is not reachable ({unreachable})")
        return 0
    try:
        found = audit(given.lock, given.url)
    except RuntimeError as error:
        print(f"{given.lock} was not audited: {error}", file=sys.stderr)
        return 1
    return report(given.lock, found)


def why_unreachable(url: str) -> str:
    """Query the service for one package; return why there is no answer, or an empty string if there is one."""
    query = json.dumps({"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "24.0"}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, query), timeout=TIMEOUT_S) as response:  # noqa: S310  (from the command line)
            json.load(response)
    except urllib.error.HTTPError as error:
        return f"it answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return ""


def audit(lock: Path, url: str) -> list[dict[str, Any]]:
    """Look up every pin without resolving dependencies; return a record per pin, with `vulns` or a `skip_reason`.

    Raises
    ------
    RuntimeError
        The lock is unreadable, or the service became unreachable.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
        command += ["--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", folder]
        command += ["--progress-spinner", "off", "--format", "json", "--output", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (fixed arguments)
        if not out.exists():
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"pip-audit ended with {done.returncode}")
        records: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["dependencies"]
        return records


def report(lock: Path, found: list[dict[str, Any]]) -> int:
    """Print the result; return the exit code."""
    skipped = [each for each in found if "skip_reason" in each]
    for each in skipped:
        print(f"{each['name']} was not audited: {each['skip_reason']}", file=sys.stderr)
    vulnerable = [(each, vuln) for each in found for vuln in each.get("vulns", ())]
    for each, vuln in vulnerable:
        fixed = ", ".join(vuln["fix_versions"]) or "no version yet"
        print(f"{each['name']} {each['version']}: {vuln['id']}, fixed in {fixed}", file=sys.stderr)
    if skipped or vulnerable:
        return 1
    print(f"{lock}: no known vulnerability in {len(found)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
