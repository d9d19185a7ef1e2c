"""The full cycle of learned costs: `python tests/benchmarks/loop.py [--quick] [--out loop.png]`.

The model of the demo is trained at the costs of its extractors, and served. Then one of them becomes slow, by default
the first of the sequence: every prediction waits for it, and under short deadlines nearly all answers are the base
rate. Group times are read from the metrics port (`anytime costs`), the groups are resequenced (`anytime resequence
--data`), and the service reloads the file. A client measures accuracy and depth by deadline before and after, and they
are plotted with what a simulation expects from the learned costs (`anytime evaluate --random-costs`). The client
computes the groups one after the other; it finishes and sends the group in progress.

It fails if the slow group's cost is not learned within a fifth, or nothing is gained at the deadline of 3 ms.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.costs.profiling import profile
from anytime.groups import load_groups, write_groups
from anytime.inference.prediction import Answer
from anytime.loaded import load
from anytime.types import Float
from anytime_service.client.messages import decode_reply, encode_values
from anytime_service.demo.extractors import EXTRACTORS, Extractor, feature_table
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.schemas.messages import BeginFrame, EndFrame, PackedGroupFrame
from benchmarks.harness import aligned, conclude, flag, script_options, set_priority, violations
from benchmarks.load.frames import WebSocketClient, binary
from drills.cluster import ready
from system import free_port, started

JUDGED_MS = 3.0
DEADLINES_MS = (0.75, 1.5, 2.25, JUDGED_MS, 4.0, 6.0, 8.0, 12.0, 20.0)

INTERVAL_S = 0.012
"""Time between two images, in which the group in progress at the last answer ends."""

WARM_UP = 50
"""Warm-up images under the judged deadline."""

TOLERANCE = 0.2
"""Relative error allowed in the learned cost of the slow group."""


@dataclass(frozen=True)
class Slowed:
    """An extractor with an added delay."""

    extractor: Extractor
    seconds: float

    def __call__(self, image: Float) -> Float:
        time.sleep(self.seconds)
        return self.extractor(image)


class Results(NamedTuple):
    """Results of the client, by deadline."""

    accuracy: list[float]
    steps: list[float]


def anytime(*arguments: object, code: int = 0) -> str:
    """Run a command of the library, which must exit with `code`, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "anytime", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode != code:
        raise RuntimeError(f"anytime {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def serving(model: Path) -> Iterator[tuple[str, str]]:
    """Run `anytime serve` in its own process; yield its address and that of its metrics."""
    port, metrics = free_port(), free_port()
    server = [sys.executable, "-m", "anytime", "serve", model, "--port", port]
    with started(["env", f"ANYTIME_METRICS_PORT={metrics}", *server], lambda: ready(port), timeout_s=60.0) as process:
        set_priority(process.pid)
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"


class Pipeline:
    """One thread, one WebSocket, no margins: the answer is sent at the deadline, and read after each group.

    The group in progress is still computed to its end and sent, too late to be used: its time is data for the service.

    Parameters
    ----------
    order : groups in the order in which they are computed.
    """

    def __init__(self, port: int, order: Sequence[str], extractors: Mapping[str, Callable[[Any], Any]]) -> None:
        self._client = WebSocketClient(port, "/stream")
        self._order = tuple(order)
        self._extractors = extractors
        self._next = 0

    def predict(self, x: Any, deadline_ms: float) -> Answer:
        """Compute groups of `x` until the answer is received."""
        name = self._next
        self._next += 1
        self._send(BeginFrame(id=name, deadline_ms=deadline_ms))
        for group in self._order:
            begin = time.perf_counter()
            values = self._extractors[group](x)
            took_ms = (time.perf_counter() - begin) * 1e3
            encoded = encode_values(group, values)
            self._send(PackedGroupFrame(name, group, encoded.values, took_ms, encoded.dtype))
            if select.select([self._client.sock], [], [], 0)[0]:
                break
        else:
            self._send(EndFrame(name))
        while True:
            for frame in self._client.frames():
                reply = decode_reply(frame)
                if reply is not None and reply[1] == name and isinstance(reply[2], Answer):
                    return reply[2]
                if reply is not None and isinstance(reply[2], Exception):  # an `end` sent too late raises nothing
                    raise reply[2]

    def close(self) -> None:
        self._client.close()

    def _send(self, frame: BeginFrame | PackedGroupFrame[msgspec.Raw] | EndFrame) -> None:
        self._client.sock.sendall(binary(MSGPACK.encode(frame)))


Predict = Callable[[Float, float], Answer]


@contextmanager
def pipeline(url: str, model: Path, extractors: dict[str, Extractor]) -> Iterator[Predict]:
    """Yield a client that computes the groups in one thread, and sends each."""
    found = Pipeline(int(url.rpartition(":")[2]), load(model).computed[-1], extractors)
    yield found.predict
    found.close()


def drive(predict: Predict, images: Float, labels: Any) -> Results:
    """Request a prediction for every image under every deadline."""
    found: dict[float, list[tuple[bool, int]]] = {deadline: [] for deadline in DEADLINES_MS}
    for image in images[:WARM_UP]:
        time.sleep(INTERVAL_S)
        predict(image, JUDGED_MS)
    for image, label in zip(images, labels, strict=True):
        for deadline, of_deadline in found.items():
            time.sleep(INTERVAL_S)
            answer = predict(image, deadline)
            of_deadline.append((bool(answer.prediction == label), answer.prefix))
    time.sleep(0.1)
    return Results(*np.mean([*found.values()], axis=1).T.tolist())


def expected(model: Path, test: Path, distributions: Path) -> list[float]:
    """Return the accuracy by deadline that the learned costs predict."""
    deadlines = [part for deadline in DEADLINES_MS for part in ("--deadline", deadline)]
    reply = json.loads(anytime("evaluate", model, test, "--random-costs", distributions, *deadlines, "--json"))
    return [each["accuracy"] for each in reply["random_costs"]["deadlines"]]


def draw(path: Path, slow: str, sides: dict[str, tuple[Results, list[float]]], steps: int) -> None:
    """Plot accuracy and depth by deadline, before and after; distinguishable in grey."""
    figure = Figure(figsize=(7.0, 6.4), layout="constrained")
    axes = figure.subplots(2, sharex=True)
    looks = ({"color": "0.5", "linestyle": "--", "markerfacecolor": "white"}, {"color": "black", "linestyle": "-"})
    for (name, (results, simulated)), look in zip(sides.items(), looks, strict=True):
        axes[0].plot(DEADLINES_MS, results.accuracy, marker="o", markersize=4, label=name, **look)
        axes[0].plot(
            DEADLINES_MS,
            simulated,
            "x",
            color=look["color"],
            markersize=6,
            label=f"{name}: expected from the learned costs",
        )
        axes[1].plot(DEADLINES_MS, results.steps, marker="o", markersize=4, label=name, **look)
    for axis in axes:
        axis.axvline(JUDGED_MS, color="grey", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 3, 5, 10, 20])
    axes[0].set(ylabel="accuracy", ylim=(0, 1.02), title=f"digits, served; {slow!r} has become slow")
    axes[0].legend(fontsize=8, loc="lower right")
    axes[1].set(ylabel=f"steps used, of {steps}", xlabel="deadline (ms)", ylim=(0, None))
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the cycle once."""
    args = script_options(
        __doc__.splitlines()[0] if __doc__ else None,
        quick=flag("a tenth of the images"),
        slow={"help": "group that becomes slow; by default the first of the sequence"},
        by={"type": float, "default": 4.0, "help": "added delay in milliseconds"},
        out={"type": Path, "default": Path("loop.png"), "help": "picture to write"},
    )
    digits = load_digits()
    images, labels = digits.images.astype(np.float64), digits.target
    print("computing the features of the digits, and what each group costs ...", flush=True)
    X, groups = feature_table(images)
    learn, test = train_test_split(np.arange(len(images)), test_size=0.3, stratify=labels, random_state=0)
    images_used = test[: 20 if args.quick else 200]
    with tempfile.TemporaryDirectory(prefix="anytime-loop-") as scratch:
        folder = Path(scratch)
        write_groups(groups, folder / "groups.yaml")
        for name, rows in (("learn", learn), ("test", test)):
            np.savetxt(
                folder / f"{name}.csv",
                np.column_stack([X[rows], labels[rows]]),
                "%.17g",
                delimiter=",",
                header=",".join([*groups.features, "digit"]),
                comments="",
            )
        data, model = folder / "learn.csv", folder / "digits.safetensors"
        task = ("--target", "digit", "--task", "multiclass", "--family", "multinomial", "--alpha", 1e-3, "--folds", 0)
        anytime("train", data, "--groups", folder / "groups.yaml", *task, "--out", model)
        trained = load(model)
        slow = args.slow or trained.manifest.steps[0].group
        extractors = dict(EXTRACTORS) | {slow: Slowed(EXTRACTORS[slow], args.by / 1e3)}
        print(f"{slow!r} takes {args.by:g} ms longer from now on", flush=True)
        with serving(model) as (url, metrics):
            with pipeline(url, model, extractors) as predict:
                before = drive(predict, images[images_used], labels[images_used])
            learned = folder / "learned.yaml"
            options = ("--model", model, "--data", data, "--out", learned, "--distributions", folder / "learned.json")
            print(anytime("costs", "--from", metrics, *options, "--check", code=3))
            expected_before = expected(model, folder / "test.csv", folder / "learned.json")
            anytime("resequence", model, "--costs", learned, "--data", data, "--out", model)
            request = urllib.request.Request(f"{url}/models/{model.stem}/reload", method="POST")
            with urllib.request.urlopen(request, timeout=60) as response:
                print(f"reloaded: version {json.load(response)['version']}, before {trained.version}", flush=True)
            with pipeline(url, model, extractors) as predict:
                after = drive(predict, images[images_used], labels[images_used])
            expected_after = expected(model, folder / "test.csv", folder / "learned.json")
        true = profile(groups, extractors, tuple(images[images_used[:50]]))
        learned_groups = load_groups(learned)
        found = {name: learned_groups.costs[learned_groups.position(name)] for name in true.groups}
        truth = {name: float(each.per_row.mean()) for name, each in true.groups.items()}
        costs = zip(groups.costs, found.values(), truth.values(), strict=True)
        rows = ((name, *(f"{cost:.3f}" for cost in each)) for name, each in zip(found, costs, strict=True))
        print(*aligned(("group", "trained at (ms)", "learned (ms)", "true mean (ms)"), rows), "", sep="\n")
        series = (before.accuracy, expected_before, after.accuracy, expected_after, before.steps, after.steps)
        rows = ((at, *(f"{value:.3f}" for value in each)) for at, *each in zip(DEADLINES_MS, *series, strict=True))
        columns = "deadline (ms)", "before", "expected", "after", "expected", "steps before", "after"
        print(*aligned(columns, rows), sep="\n")
        draw(args.out, slow, {"before": (before, expected_before), "after": (after, expected_after)}, trained.steps)
    judged = DEADLINES_MS.index(JUDGED_MS)
    gained = after.accuracy[judged] - before.accuracy[judged]
    upto = [f"{np.mean(each.accuracy[: judged + 1]):.3f}" for each in (before, after)]  # of an unknown deadline
    print(f"\nmean accuracy of the deadlines up to {JUDGED_MS:g} ms: {', then '.join(upto)}")
    print(f"at {JUDGED_MS:g} ms: accuracy {gained:+.3f}, steps {after.steps[judged] - before.steps[judged]:+.2f}")
    print(f"wrote {args.out}")
    conclude(
        violations(
            (
                abs(found[slow] - truth[slow]) > TOLERANCE * truth[slow],
                f"{slow!r} was learned as {found[slow]:.3g} ms; it takes {truth[slow]:.3g}",
            ),
            (gained <= 0, f"nothing was gained at {JUDGED_MS:g} ms"),
        )
    )


if __name__ == "__main__":
    main()
