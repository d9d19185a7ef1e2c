"""Whether any pin of a lock is known to be vulnerable: `python deploy/audit.py requirements.lock`.

pip-audit asks a service that speaks the interface of OSV. Without a network there is nobody to ask, which is said in
one line and fails nothing; a vulnerability that is found fails, and so does anything else that keeps the pins from
being looked at.
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

__all__ = ["audit", "main", "reachable", "report"]

SERVICE = "https://api.osv.dev/v1/query"
PATIENCE_S = 10


def main() -> int:
    """Look, and tell what was found; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path, help="requirements with hashes")
    parser.add_argument("--url", default=SERVICE, help="where to ask")
    given = parser.parse_args()
    away = reachable(given.url)
    if away:
        print(f"{given.lock} was not audited: the service cannot be reached ({away})")
        return 0
    try:
        found = audit(given.lock, given.url)
    except RuntimeError as error:
        print(f"{given.lock} was not audited: {error}", file=sys.stderr)
        return 1
    return report(given.lock, found)


def reachable(url: str) -> str:
    """Ask about one package; why there is no answer, or nothing if there is."""
    query = json.dumps({"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "24.0"}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, query), timeout=PATIENCE_S) as response:  # noqa: S310  (from the command line)
            json.load(response)
    except urllib.error.HTTPError as error:
        return f"it answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return ""


def audit(lock: Path, url: str) -> list[dict[str, Any]]:
    """Have every pin looked up, without resolving anything; a record each, with its `vulns` or a `skip_reason`.

    Raises
    ------
    RuntimeError
        The lock cannot be read, or the service went away meanwhile.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
        command += ["--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", folder]
        command += ["--progress-spinner", "off", "--format", "json", "--output", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own words)
        if not out.exists():
            said = done.stderr.strip().splitlines()
            raise RuntimeError(said[-1] if said else f"pip-audit ended with {done.returncode}")
        records: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["dependencies"]
        return records


def report(lock: Path, found: list[dict[str, Any]]) -> int:
    """Tell what was found; the exit code."""
    skipped = [each for each in found if "skip_reason" in each]
    for each in skipped:
        print(f"{each['name']} was not audited: {each['skip_reason']}", file=sys.stderr)
    vulnerable = [(each, vuln) for each in found for vuln in each.get("vulns", ())]
    for each, vuln in vulnerable:
        mended = ", ".join(vuln["fix_versions"]) or "no version yet"
        print(f"{each['name']} {each['version']}: {vuln['id']}, mended by {mended}", file=sys.stderr)
    if skipped or vulnerable:
        return 1
    print(f"{lock}: no known vulnerability in {len(found)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
