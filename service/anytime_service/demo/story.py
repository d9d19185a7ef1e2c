"""Demo program: measure costs, train, serve, and answer under deadlines."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import IO, Any

import httpx
import numpy as np
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from anytime.cli.summary import steps_table
from anytime.errors import AnytimeError
from anytime.estimators import AnytimeClassifier
from anytime.inference.prediction import Answer
from anytime.inference.runner import Runner
from anytime.model.model import Model
from anytime.tabulated import Tabulated
from anytime.types import Float
from anytime_service.demo.extractors import EXTRACTORS, feature_table

DEADLINES_MS = (1.0, 3.0, 10.0)

ALPHA = 1e-3  # penalty of the softmax regression; cross-validation takes minutes here and hardly improves it

WARM_UP, SHOWN, EVALUATED = 50, 3, 200  # images to warm up, to show individually, and for accuracy and timeliness


def run_demo(*, once: bool, port: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    digits = load_digits()
    images, labels = digits.images.astype(np.float64), digits.target
    console.print(f"Computing {len(EXTRACTORS)} feature groups of {len(images)} digits and measuring their costs ...")
    X, groups = feature_table(images)
    rows = np.arange(len(images))
    train, test = train_test_split(rows, test_size=0.3, stratify=labels, random_state=0)
    with tempfile.TemporaryDirectory(prefix="anytime-demo-") as folder:
        path = Path(folder) / "digits.safetensors"
        classifier = AnytimeClassifier(groups, family="multinomial", alpha=ALPHA, basis="linear")
        model = classifier.fit(X[train], labels[train]).save(path)
        console.print(
            f"Trained softmax regression on {len(train)} of them, ordered by what groups explain per millisecond:\n"
        )
        console.print(steps_table(model))
        console.print(
            f"\naccuracy on the other {len(test)} with all groups: {classifier.score(X[test], labels[test]):.3f}"
        )
        with _server(path, port) as (address, process):
            console.print(f"\nServing {path.name} at http://127.0.0.1:{address}")
            _answer(console, model, address, images[test], labels[test])
            if not once:
                console.print(_invitation(model, address, X[test[0]]), markup=False)
                console.print("The server runs until you press Ctrl-C.")
                with contextlib.suppress(KeyboardInterrupt):
                    process.wait()


def _answer(console: Console, model: Model, port: int, images: Float, labels: Any) -> None:
    """Answer for images under each deadline, request the same groups from the server, and print the results."""
    with Runner(model, EXTRACTORS, worker="process") as runner:
        runner.warm_up(images[0])
        for image in images[-WARM_UP:]:  # the runner learns how late this machine wakes it up
            for deadline in DEADLINES_MS:
                timed(runner, image, deadline)
        url = f"http://127.0.0.1:{port}/predict?deadline_ms=1000"
        rows: list[tuple[Any, ...]] = []
        for image, label in zip(images[:SHOWN], labels[:SHOWN], strict=True):
            for deadline in DEADLINES_MS:
                answer, took, fired = timed(runner, image, deadline)
                groups = {name: EXTRACTORS[name](image).tolist() for name in answer.groups}
                reply = httpx.post(url, json={"groups": groups}).raise_for_status().json()
                order = np.argsort(answer.probabilities)[::-1][:3]
                likely = "  ".join(f"{digit} {answer.probabilities[digit]:.2f}" for digit in order)
                rows.append(
                    (
                        *(int(label), f"{deadline:g} ms", f"{took:.2f} ms", f"{fired:.2f} ms"),
                        *(f"{answer.prefix} of {answer.steps}", answer.prediction, likely, reply["prediction"]),
                    )
                )
        console.print(
            "A runner computes the groups in a worker process and answers at each deadline by itself.\n"
            "A bare timer of the same deadline runs next to it, and shows how late this machine wakes programs.\n"
            "The server, with a deadline of 1 s, returns the same prediction for the same groups:\n"
        )
        columns = ("digit", "deadline", "answer", "timer", "groups", "prediction", "probabilities", "server")
        console.print(Tabulated.of_rows(columns, rows))
        console.print(
            f"\n{EVALUATED} more digits under each deadline, answered by the runner. A late answer is 'late with "
            "timer'\nif the bare timer was at least as late: the machine was the cause. Others are 'late alone':\n"
        )
        console.print(counts(runner, images[SHOWN:][:EVALUATED], labels[SHOWN:][:EVALUATED]))


def counts(runner: Runner[Answer], images: Float, labels: Any) -> Tabulated:
    """Answer for images under each deadline; return a table of the results, and of what was late."""
    rows: list[tuple[str, ...]] = []
    for deadline in DEADLINES_MS:
        answers, *times = zip(*(timed(runner, image, deadline) for image in images), strict=True)
        took, fired = np.array(times)
        accuracy = np.mean([answer.prediction == label for answer, label in zip(answers, labels, strict=True)])
        used = np.mean([answer.prefix for answer in answers])
        in_time, alone = np.sum(took <= deadline), np.sum((took > deadline) & (fired < took))
        rows.append(
            (
                *(f"{deadline:g} ms", f"{used:.1f}", f"{accuracy:.3f}"),
                *(f"{in_time} of {len(took)}", f"{len(took) - in_time - alone}", f"{alone}"),
                *(f"{np.median(took):.2f} ms", f"{took.max():.2f} ms"),
            )
        )
    late = ("in time", "late with timer", "late alone")
    return Tabulated.of_rows(("deadline", "groups (mean)", "accuracy", *late, "median", "slowest"), rows)


def timed(runner: Runner[Answer], image: Float, deadline_ms: float) -> tuple[Answer, float, float]:
    """Return the answer for an image, its time, and the time of a bare timer of the same deadline, in milliseconds.

    Images arrive one by one, as from a camera.
    """
    time.sleep(0.002)  # the extractor that was running at the last deadline ends
    fired: list[float] = []
    timer = Timer(deadline_ms / 1e3, lambda: fired.append(time.perf_counter()))
    timer.start()
    begin = time.perf_counter()
    answer = runner.run(image, deadline_ms)
    took = time.perf_counter() - begin
    timer.join()
    return answer, took * 1e3, (fired[0] - begin) * 1e3


def _invitation(model: Model, port: int, row: Float) -> str:
    first = model.manifest.steps[0].group
    values = [round(value, 4) for value in row[model.groups.slices[model.groups.position(first)]].tolist()]
    return (
        f"\nTry it:\n  curl 'http://127.0.0.1:{port}/predict?deadline_ms=5' -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"groups": {{"{first}": {values}}}}}\'\n'
        f"  console: http://127.0.0.1:{port}/      documentation: http://127.0.0.1:{port}/docs\n"
    )


@contextlib.contextmanager
def _server(path: Path, port: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run `anytime serve` in a process until it is ready; yield its port and the process."""
    port = _free_port(port)
    command = [sys.executable, "-m", "anytime", "serve", str(path), "--port", str(port)]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603  (this very package)
        try:
            _wait_until_ready(port, process, log)
            yield port, process
        finally:
            process.terminate()
            with contextlib.suppress(KeyboardInterrupt):
                process.wait(timeout=20)


def _free_port(wanted: int) -> int:
    """Return `wanted`, or any free port if it is in use."""
    for candidate in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)) as listening:
            return int(listening.getsockname()[1])
    raise AnytimeError("found no free port on 127.0.0.1; stop some servers")


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Wait until the server is ready; raise AnytimeError, with the last line of its log, if it ends before."""
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1).is_success:
                return
        time.sleep(0.05)
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    raise AnytimeError(f"the server did not start: {lines[-1] if lines else 'it printed nothing'}")
