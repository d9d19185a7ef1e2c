"""The examples for other languages run, against a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from service.doors import keyed
from service.serving import VALUES, Running

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


def node(*arguments: str, sockets: bool = False, **environment: str) -> str:
    """What a script prints; skips where there is no node that has fetch, or WebSocket where it is needed."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node here")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.sub(r"\D.*", "", version.removeprefix("v")))
    flags = ["--experimental-websocket"] if major < 22 and sockets else []
    if major < 20:
        pytest.skip(f"node {major} is here; expected 20 or newer")
    reported = {**os.environ, **environment}
    command = [program, *flags, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=reported)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("stream.mjs", r"0 ms: 10 from nothing.*so far .* from speed.*1000 ms: .* from speed, hog, lab \(3 of 3"),
        ("post.mjs", r"at hand: .* from speed, hog, lab.*1000 ms: .* from speed, hog, lab \(3 of 3"),
        ("sessions.mjs", r"speed: 1 of 3 steps.*lab: 3 of 3.*waited: .* from speed, hog, lab \(3 of 3 steps, complete"),
    ],
)
@pytest.mark.parametrize("named", [(), ("brake",)], ids=["the only model", "by name"])
def test_the_javascript_examples_run(server: Running, script: str, expected: str, named: tuple[str, ...]) -> None:
    printed = node(str(EXAMPLES / script), server.url, *named, sockets=script == "stream.mjs")
    assert re.search(expected, printed, re.DOTALL), printed


def test_a_key_of_any_signs_goes_with_a_websocket() -> None:
    key = "Rk3/9xw+T0a1b2c3d4e5f6g7h8i9j0klmn=="
    with keyed(key) as service:
        assert "lab (3 of 3" in node(str(EXAMPLES / "stream.mjs"), service.url, sockets=True, ANYTIME_KEY=key)


def test_a_websocket_that_has_closed_is_told(server: Running, tmp_path: Path) -> None:
    script = tmp_path / "closed.mjs"
    script.write_text(
        f"""
        import {{ connect }} from {json.dumps((EXAMPLES / "stream.mjs").as_uri())};
        const server = connect({json.dumps(server.url)});
        await server.run([], {{}}, {{ deadlineMs: 0 }});
        server.close();
        await server.run([], {{}}, {{ deadlineMs: 0 }}).catch((error) => console.log(error.message));
        """
    )
    assert node(str(script), sockets=True).strip() == "the connection closed; connect again"


def test_the_curl_example_runs(server: Running, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    lines = tmp_path / "groups.ndjson"
    lines.write_text("".join(f'{{"group": "{name}", "values": {values}}}\n' for name, values in VALUES.items()))
    done = subprocess.run(
        ["bash", str(EXAMPLES / "curl.sh"), server.url, str(lines), "brake"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    replies = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    models, whole, streamed, took, budgeted, waited = replies
    assert models[0]["name"] == "brake"
    assert whole["complete"]
    assert streamed["reason"] in ("deadline", "complete")
    assert took["prefix"] == 3
    assert (budgeted["prefix"], waited["reason"]) == (2, "complete")


def test_every_line_of_the_groups_beside_the_examples_is_one_group() -> None:
    lines = (EXAMPLES / "groups.ndjson").read_text().splitlines()
    assert all(set(json.loads(line)) == {"group", "values"} for line in lines)
