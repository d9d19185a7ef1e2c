"""Every argument and option of every command, and every value that its help lists, has an effect."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from joblib import Parallel
from typer.core import TyperGroup

from anytime.cli.main import main
from anytime.costs import profiling
from anytime.evaluation.certificate import certify
from anytime.families import FAMILIES
from anytime.features import learning
from anytime.features.bases import BASES
from anytime.features.learning import CLAMPS
from anytime.model.export import EXPORTS
from anytime.moments import accumulate
from anytime.selection import methods
from anytime.types import Policy, Task
from anytime_service.demo import story
from anytime_service.server import run
from effects.rows import GROUPS, Elsewhere, Row, Seen, Table, cases, check, named, numbers_of, of_file, orders, table

DASK = Elsewhere("tests/models/training/test_dask.py", "--backend")
SCHEDULER = Elsewhere("tests/models/training/test_dask.py", "--scheduler")

PRICES = {"hour": 9.0, "size": 2.0, "code": {"fixed": 20.0, "per_row": 0.5}, "town": 1.0}

EXTRACTORS = """
from threading import Barrier, current_thread, main_thread
NOW = [0]
def spend(number, result):
    NOW[0] += number * 1_000_000
    return result
def rising(row):
    return spend(1 + int(row["h"]), [row["x"]])
EXTRACTORS = {"hour": lambda row: spend(2, [row["h"]]), "size": rising}
SLOW = {"hour": lambda row: spend(7, [row["h"]]), "size": rising}
BATCHES = {"hour": lambda rows: spend(2 + len(rows["h"]), rows["h"][:, None]),
           "size": lambda rows: spend(5, rows["x"][:, None])}
INPUTS = [{"h": 1.0, "x": 2.0, "k": 9}]
def together():
    barrier = Barrier(2)
    def met(row):
        barrier.wait(0 if current_thread() is main_thread() else 60)
        return [row["h"]]
    return {"hour": met, "size": met}
def cooling():
    calls = []
    def cold(row):
        calls.append(row)
        return spend(9 if len(calls) < 45 else 1, [row["h"]])
    return {"hour": cold, "size": rising}
"""

SCRAPE = "\n".join(
    [
        "# TYPE anytime_group_seconds histogram",
        *(
            f'anytime_group_seconds_{part}{{model="m",group="{group}"{label}}} {value}'
            for group, low, calls, total in (("hour", 2, 40, 2.0), ("size", 40, 40, 0.01), ("code", 0, 8, 0.04))
            for part, label, value in (
                *(
                    ("bucket", f',le="{bound}"', count)
                    for bound, count in ((0.002, low), (0.01, calls), ("+Inf", calls))
                ),
                ("sum", "", total),
            )
        ),
        "",
    ]
)


def files() -> None:
    frame, others = table(0, 90), table(1, 60)
    frame.to_csv("t.csv", index=False)
    others.to_csv("o.csv", index=False)
    frame.assign(y=frame["y"].mask(frame.index < 4)).to_csv("gaps.csv", index=False)
    frame.assign(n=frame["n"].mask(frame.index < 4), c=frame["c"].mask(frame.index < 4)).to_csv(
        "lacks.csv", index=False
    )
    frame.to_csv("tilde.csv", index=False, sep="~")
    frame.to_csv("comma.csv", index=False, sep=";", decimal=",")
    marks = frame.assign(**{name: frame[name].map("{:,.3f}".format) for name in ("h", "y")})
    marks.assign(h=(frame["h"] * 1000).map("{:,.3f}".format)).to_csv("thousands.csv", index=False)
    frame.drop(columns=["t", "y"]).to_csv("lacking.csv", index=False)
    orders().to_csv("orders.csv", index=False)
    Path("g.json").write_text(json.dumps(GROUPS))
    priced = [{**group, "cost": PRICES[group["name"]]} for group in GROUPS["groups"]]
    Path("prices.json").write_text(json.dumps({**GROUPS, "groups": priced}))
    of_orders = {"a": (2, 2), "b": (3, 3), "c": (1, 1), "e": (3, 4)}
    Path("orders.json").write_text(
        json.dumps({g: {"features": [f"{g}{i}" for i in range(n)], "cost": c} for g, (n, c) in of_orders.items()})
    )
    Path("metrics.txt").write_text(SCRAPE)
    Path("earlier.txt").write_text(SCRAPE.replace(" 40\n", " 2\n").replace("2.0\n", "1.9\n"))
    two = [group for group in GROUPS["groups"] if group["name"] in ("hour", "size")]
    Path("two.json").write_text(json.dumps({**GROUPS, "groups": two}))
    two = [{**group, "requires": ["hour"] * (group["name"] == "size")} for group in two]
    Path("chain.json").write_text(json.dumps({**GROUPS, "groups": two}))
    Path("singles.json").write_text(json.dumps({name: [name] for name in orders().columns if name not in "ycq"}))
    many = [{"name": name, "features": [name], "cost": 1.0} for name in "hxkzvnwp"]
    Path("many.json").write_text(json.dumps({"groups": many}))
    Path("hour.json").write_text('{"hour": ["h"]}')
    Path("codes.json").write_text('{"code": ["p"]}')
    Path("dates.json").write_text('{"date": ["d"]}')
    Path("again").mkdir()
    Path("counted").mkdir()
    for name, words in {
        "m": "--alpha cv",
        "other": "--target z",
        "first": "--first town",
        "classes": "--target c --family gaussian --calibrate o.csv",
        "counts": "--target n --family poisson",
        "counted/m": "--target n --family poisson",
        "again/m": "--first town",
        "timed": "--groups two.json",
        "best": "orders.csv --groups singles.json --alpha 1e-4",
        "o": ORDERS,
        "spare": ORDERS,
        "blind": f"{ORDERS} --cost-blind",
        "doubled": f"{ORDERS} --doubling",
    }.items():
        assert main(["train", *merged(BASE["train"], words, f"--out {name}.safetensors")]) == 0
    for name in ("t", "o"):
        assert main(["moments", *merged(BASE["moments"], f"{name}.csv --groups hour.json --out {name}.moments")]) == 0
    profile = "extracting:EXTRACTORS t.csv --groups two.json --out two.yaml --distributions times.json --limit 9"
    assert main(["profile", *profile.split()]) == 0


def merged(*parts: str) -> list[str]:
    """Return the words of a call: arguments and options of a later part replace those of an earlier one."""
    arguments: list[str] = []
    options: dict[str, list[str]] = {}
    for part in parts:
        own: dict[str, list[str]] = {}
        words = part.split()
        at = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        arguments = words[:at] or arguments
        for word in words[at:]:
            if word.startswith("--"):
                name = word
            own.setdefault(name, []).append(word)
        options |= own
    return [*arguments, *(word for words in options.values() for word in words)]


BASE = {
    "groups": "t.csv --target y --out out/g.yaml",
    "train": "t.csv --groups g.json --target y --alpha 0.01 --folds 3 --basis linear --min-level-rows 10 "
    "--out out/m.safetensors",
    "basis": "t.csv --groups g.json --out out/g.json",
    "moments": "t.csv --groups g.json --target y --folds 3 --out out/m.moments",
    "show": "m.safetensors",
    "predict": "m.safetensors o.csv --out out/p.csv",
    "evaluate": "m.safetensors o.csv",
    "report": "m.safetensors --out out/r.html",
    "compare": "t.csv --groups g.json --target y --alpha 0.01 --folds 3 --basis linear",
    "what-if": "m.safetensors --without town",
    "plot": "m.safetensors --out out/p.png",
    "resequence": "m.safetensors --cost hour=1 --out out/m.safetensors",
    "profile": "extracting:EXTRACTORS t.csv --groups two.json --out out/g.yaml --limit 9",
    "costs": "--from metrics.txt --model m.safetensors",
    "certify": "o.safetensors",
    "export": "m.safetensors --to json",
    "serve": "m.safetensors",
    "demo": "",
    "reproduce": "",
}

ORDERS = "orders.csv --groups orders.json"
SIMULATED = "timed.safetensors o.csv --random-costs times.json"


def reading(data: str, weighted: str, gaps: str = "gaps.csv") -> dict[str, Row]:
    """Return rows of the options that say how rows are read; `data` has the table at {}."""

    def row(stated: str, sees: str, table: str, **others: Any) -> Row:
        return Row(stated, sees, given=data.format(table), **others)

    return {
        "--separator": row("--separator ~", "code", "tilde.csv"),
        "--decimal": row("--decimal ,", "code", "comma.csv"),
        "--thousands": row("--thousands ,", "code", "thousands.csv"),
        "--weights": row("--weights w", weighted, "t.csv"),
        "--missing-target": row("--missing-target error", "code", gaps, code=2),
        "--n-jobs": row("--n-jobs 3", "threads", "t.csv"),
    }


def csv(data: str) -> dict[str, Row]:
    """Return those of the options about CSV files."""
    return dict(list(reading(data, "").items())[:3])


TABLES: dict[str, Table] = {
    "groups": {
        "data": Row("orders.csv", "text", shows="a0"),
        "--target": Row("--target z", "text", shows="target z"),
        "--out": Row("--out out/other.yaml", "files", shows="other.yaml"),
        "--by-prefix": Row("--by-prefix 0", "text", given="orders.csv"),
        "--cost": Row("--cost x=7", "text", shows="cost: 7"),
        "--query": Row("--query q", "text"),
        "--weights": Row("--weights w", "text"),
        "--text": Row("--text k", "text", shows="k: text"),
        "--number": Row("--number p", "text"),
        **{name: replace(row, sees="text") for name, row in csv("{}").items()},
    },
    "train": {
        "data": Row("o.csv", "coefficients"),
        "--out": Row("--out out/other.safetensors", "name", shows="other"),
        "--groups": Row("--groups prices.json", "order"),
        "--target": Row("--target z", "coefficients"),
        "--task": Row("--task multiclass", "classes", given="--target n"),
        "--folds": Row("--folds 4", "errors"),
        "--query": Row("--query q", "errors"),
        "--drop": Row("--drop x", "terms"),
        "--basis": Row("--basis cyclic:24", "terms", shows="h sine"),
        "--text": Row("--text k", "terms", shows="k=2"),
        "--number": Row("--number p", "terms", given="--groups codes.json"),
        "--clamp": Row("--clamp 0.1", "ranges"),
        "--min-level-rows": Row("--min-level-rows 5", "terms", shows="t=d"),
        "--seed": Row("--seed 1", "errors"),
        "--alpha": Row("--alpha 0.5", "coefficients"),
        "--rows": Row("--rows 40", "costs", given="--groups prices.json"),
        "--family": Row("--family poisson", "coefficients", given="--target n"),
        "--method": Row("--method omp", "order", given=ORDERS),
        "--cost-blind": Row("--cost-blind", "order", given=ORDERS),
        "--doubling": Row("--doubling", "order", given=ORDERS),
        "--class-weight": Row("--class-weight balanced", "coefficients", given="--target c"),
        "--first": Row("--first town", "order"),
        "--without": Row("--without hour", "order"),
        "--one-se": Row("--one-se", "alphas", given="--alpha cv"),
        "--nested": Row("--nested", "errors", given=ORDERS),
        "--epsilon": Row("--epsilon 0.3", "order"),
        "--pairs": Row("--pairs 2", "terms", shows=" * "),
        **reading("{}", "coefficients"),
        "--validation": Row("--validation o.csv", "stopped", shows="o.csv"),
        "--calibrate": Row("--calibrate o.csv", "calibration", shows="o.csv"),
        "--coverage": Row("--coverage 0.5", "calibration", given="--calibrate o.csv"),
        "--test": Row("--test o.csv", "out", shows="test"),
        "--no-moments": Row("--no-moments", "moments", shows="False"),
        "--backend": DASK,
        "--scheduler": SCHEDULER,
    },
    "basis": {
        "data": Row("o.csv", "text"),
        "--out": Row("--out out/other.json", "files", shows="other.json"),
        "--groups": Row("--groups two.json", "text"),
        "--basis": Row("--basis cyclic:24", "text", shows="cyclic:24"),
        "--clamp": Row("--clamp 0.1", "text"),
        "--min-level-rows": Row("--min-level-rows 5", "text"),
        "--target": Row("--target y", "text", given="gaps.csv --basis hinge"),
        "--pairs": Row("--pairs 2", "text", given="--target z", shows='"pairs"'),
        "--text": Row("--text k", "text", shows='"k": "text"'),
        "--number": Row("--number p", "text", given="--groups codes.json"),
        "--seed": Row("--seed 1", "text", given="--groups many.json --basis hinge"),
        **csv("{}"),
    },
    "moments": {
        "data": Row("t.csv o.csv", "rows"),
        "--out": Row("--out out/other.moments", "files", shows="other.moments"),
        "--groups": Row("--groups two.json", "terms"),
        "--target": Row("--target z", "responses"),
        "--task": Row("--task multiclass", "classes", given="--target n"),
        "--folds": Row("--folds 4", "folds"),
        "--query": Row("--query q", "parts"),
        "--drop": Row("--drop x", "terms"),
        "--basis": Row("--basis cyclic:24", "terms", shows="cyclic:24"),
        "--text": Row("--text k", "terms", shows="'k': 'text'"),
        "--number": Row("--number p", "terms", given="--groups codes.json"),
        "--clamp": Row("--clamp 0.1", "terms"),
        "--min-level-rows": Row("--min-level-rows 5", "terms"),
        "--seed": Row("--seed 1", "parts"),
        **reading("{}", "sums"),
        "--classes": Row("--classes no,yes,maybe", "classes", given="--target c"),
        "--minus": Row("--minus o.moments", "rows", given="t.moments o.moments"),
        "--decay": Row("--decay 0.5", "weight", given="t.moments o.moments"),
        "--backend": DASK,
        "--scheduler": SCHEDULER,
    },
    "show": {
        "model": Row("other.safetensors", "out"),
        "--shapes": Row("--shapes", "out"),
        "--prefix": Row("--prefix 1", "out", given="--shapes"),
        "--budget": Row("--budget 3", "out"),
        "--json": Row("--json", "json"),
    },
    "predict": {
        "model": Row("other.safetensors o.csv", "text"),
        "data": Row("m.safetensors t.csv", "text"),
        "--out": Row("--out out/other.csv", "files", shows="other.csv"),
        "--budget": Row("--budget 1", "text"),
        "--prefix": Row("--prefix 1", "text"),
        "--policy": Row("--policy arrived", "text", given="m.safetensors lacking.csv"),
        "--proba": Row("--proba", "text", given="classes.safetensors o.csv"),
        "--explain": Row("--explain", "text", shows="hour"),
        "--interval": Row("--interval", "text", given="classes.safetensors o.csv"),
        "--keep": Row("--keep q", "text"),
        **csv("m.safetensors {}"),
    },
    "evaluate": {
        "model": Row("other.safetensors o.csv", "out"),
        "data": Row("m.safetensors t.csv", "out"),
        "--json": Row("--json", "json"),
        "--budget": Row("--budget 3", "out"),
        "--random-costs": Row("--random-costs times.json", "out", given="timed.safetensors o.csv"),
        "--deadline": Row("--deadline 3", "out", given=SIMULATED),
        "--rows": Row("--rows 5", "out", given=SIMULATED),
        "--parallel": Row("--parallel 2", "out", given=f"{SIMULATED} --deadline 15"),
        "--draws": Row("--draws 50", "out", given=f"{SIMULATED} --deadline 3"),
        "--seed": Row("--seed 1", "out", given=f"{SIMULATED} --deadline 3 --draws 50"),
        **reading("m.safetensors {}", "out"),
    },
    "report": {
        "model": Row("other.safetensors", "text"),
        "--out": Row("--out out/other.html", "files", shows="other.html"),
        "--test": Row("--test o.csv", "text"),
        "--calibrate": Row("--calibrate o.csv", "text"),
        "--coverage": Row("--coverage 0.5", "text", given="--calibrate o.csv"),
        "--weights": Row("--weights w", "text", given="--test o.csv", shows="weighted by w"),
        **csv("m.safetensors --test {}"),
    },
    "compare": {
        "data": Row("o.csv", "out"),
        "--groups": Row("--groups prices.json", "out"),
        "--target": Row("--target z", "out"),
        "--task": Row("--task multiclass", "out", given="--target n"),
        "--folds": Row("--folds 2", "out", given="--alpha cv"),
        "--query": Row("--query q", "out", given="--alpha cv"),
        "--drop": Row("--drop x", "out"),
        "--basis": Row("--basis cyclic:24", "out"),
        "--text": Row("--text k", "out"),
        "--number": Row("--number p", "out", given="--groups codes.json"),
        "--clamp": Row("--clamp 0.1", "out"),
        "--min-level-rows": Row("--min-level-rows 5", "out", other="--min-level-rows 10"),
        "--seed": Row("--seed 1", "out", given="--alpha cv"),
        "--alpha": Row("--alpha 0.5", "out"),
        **reading("{}", "out"),
        "--test": Row("--test o.csv", "out", shows="test"),
        "--level": Row("--level 0.5", "out", shows="reaches 50 %"),
        "--plot": Row("--plot out/curves.svg", "files", shows="curves.svg"),
        "--json": Row("--json", "json"),
    },
    "what-if": {
        "model": Row("first.safetensors", "out"),
        "--cost": Row("--cost hour=9", "out"),
        "--without": Row("--without hour", "out"),
        "--budget": Row("--budget 3", "out"),
        "--json": Row("--json", "json"),
        "--data": Row("--data t.csv", "out", given="counts.safetensors"),
        **reading("counts.safetensors --data {}", "out", gaps="lacks.csv"),
    },
    "plot": {
        "model": Row("other.safetensors", "bytes"),
        "--out": Row("--out out/other.png", "files", shows="other.png"),
        "--shapes": Row("--shapes", "bytes"),
        "--prefix": Row("--prefix 1", "bytes", given="--shapes"),
        "--top": Row("--top 1", "bytes", given="--shapes"),
    },
    "resequence": {
        "model": Row("other.safetensors", "coefficients"),
        "--out": Row("--out out/other.safetensors", "name", shows="other"),
        "--costs": Row("--costs prices.json", "costs"),
        "--cost": Row("--cost hour=50", "order"),
        "--method": Row("--method omp", "order", given="o.safetensors --cost a=2"),
        "--alpha": Row("--alpha 0.5", "coefficients"),
        "--cost-blind": Row("--cost-blind", "order", given="o.safetensors --cost a=2"),
        "--no-cost-blind": Row("--no-cost-blind", "order", given="blind.safetensors --cost a=2"),
        "--doubling": Row("--doubling", "order", given="o.safetensors --cost a=2"),
        "--no-doubling": Row("--no-doubling", "order", given="doubled.safetensors --cost a=2"),
        "--first": Row("--first town", "order"),
        "--no-first": Row("--no-first", "order", given="first.safetensors"),
        "--without": Row("--without hour", "order"),
        "--data": Row("--data t.csv", "code", given="counts.safetensors"),
        **reading("counts.safetensors --data {}", "coefficients", gaps="lacks.csv"),
    },
    "profile": {
        "extractors": Row("extracting:SLOW t.csv", "text"),
        "data": Row("extracting:EXTRACTORS o.csv", "text"),
        "--groups": Row("--groups chain.json", "text", shows="requires"),
        "--out": Row("--out out/other.yaml", "files", shows="other.yaml"),
        "--inputs": Row("extracting:EXTRACTORS --inputs extracting:INPUTS", "text"),
        "--rows": Row("--rows 1,4", "text", given="extracting:BATCHES t.csv", shows="fixed"),
        "--cost-quantile": Row("--cost-quantile 0.9", "text"),
        "--limit": Row("--limit 3", "json", given="--json"),
        "--repeats": Row("--repeats 2", "json", given="--json"),
        "--parallel": Row("--parallel 2", "code", given="extracting:together t.csv"),
        "--warm-up": Row("--warm-up 60", "text", given="extracting:cooling t.csv"),
        "--distributions": Row("--distributions out/d.json", "files", shows="d.json"),
        "--json": Row("--json", "json"),
    },
    "costs": {
        "--from": Row("--from earlier.txt", "out"),
        "--model": Row("--model again/m.safetensors", "out"),
        "--since": Row("--since earlier.txt", "out"),
        "--cost-quantile": Row("--cost-quantile 0.9", "out"),
        "--least": Row("--least 5", "out"),
        "--out": Row("--out out/g.yaml", "files", shows="g.yaml"),
        "--distributions": Row("--distributions out/d.json", "files", shows="d.json"),
        "--keep": Row("--keep out/metrics.txt", "files", shows="metrics.txt"),
        "--budget": Row("--budget 3", "out"),
        "--check": Row("--check", "code", code=3),
        "--tolerance": Row("--tolerance 1", "code", given="--check"),
        "--json": Row("--json", "json"),
        "--data": Row("--data t.csv", "err", given="--model counted/m.safetensors"),
        **reading("--model counted/m.safetensors --data {}", "out", gaps="lacks.csv"),
    },
    "certify": {
        "model": Row("m.safetensors", "out"),
        "--out": Row("--out out/m.safetensors", "files", shows="m.safetensors"),
        "--in-place": Row("--in-place", "out", given="spare.safetensors", shows="wrote"),
        "--seconds": Row("--seconds 0", "out"),
        "--nodes": Row("--nodes 1", "out"),
        "--n-jobs": Row("--n-jobs 3", "threads"),
        "--json": Row("--json", "json"),
    },
    "export": {
        "model": Row("other.safetensors", "out"),
        "--to": Row("--to c", "out"),
        "--out": Row("--out out/m.json", "files", shows="m.json"),
    },
    "serve": {
        "models": Row("other.safetensors", "settings"),
        "--host": Row("--host ::1", "settings"),
        "--port": Row("--port 8123", "settings"),
        "--uds": Row("--uds here.sock", "settings"),
        "--insecure": Row("--insecure", "settings"),
        "--metrics-port": Row("--metrics-port 8124", "settings"),
        "--log-level": Row("--log-level error", "settings"),
        "--session-store": Row("--session-store redis://localhost:6379", "settings"),
        "--ssl-certfile": Row("--ssl-certfile c.pem", "settings"),
        "--ssl-keyfile": Row("--ssl-keyfile k.pem", "settings"),
        "--ssl-keyfile-password": Row("--ssl-keyfile-password word", "settings"),
        "--ssl-ca-certs": Row("--ssl-ca-certs a.pem", "settings"),
    },
    "demo": {"--once": Row("--once", "settings"), "--port": Row("--port 8123", "settings")},
    "reproduce": {
        name: Elsewhere("tests/reproduction/test_reproduce.py", name)
        for name in ("name", "--all", "--quick", "--out", "--data", "--yahoo", "--yahoo-costs", "--fresh")
    }
    | {
        "--n-jobs": Elsewhere("tests/reproduction/test_running.py", "n_jobs"),
        "--seed": Elsewhere("tests/reproduction/test_running.py", "seed"),
    },
}

LINEAR = "--basis linear"
VALUES: dict[str, Table] = {
    "--basis": {
        "linear": Row(LINEAR, "terms", "--basis poly:2"),
        "hinge": Row("--basis hinge:2", "terms", LINEAR, shows="h>"),
        "auto": Row("--basis auto", "selected", LINEAR),
        "poly": Row("--basis poly:2", "terms", LINEAR, shows="h^2"),
        "cyclic": Row("--basis cyclic:24", "terms", LINEAR, "--groups hour.json", shows="h sine"),
        "categories": Row("--basis categories", "terms", LINEAR, shows="k=2"),
        "date": Row("--basis date", "terms", LINEAR, "--groups dates.json"),
    },
    "--family": {
        "gaussian": Row("--family gaussian", "coefficients", "--family binomial", "--target c"),
        "binomial": Row("--family binomial", "coefficients", "--family gaussian", "--target c"),
        "multinomial": Row("--family multinomial", "coefficients", "--family gaussian", "--target m"),
        "poisson": Row("--family poisson", "coefficients", "", "--target n"),
        "gamma": Row("--family gamma", "coefficients", "", "--target v"),
        "negative-binomial": Row(
            "--family negative-binomial:2", "coefficients", "--family negative-binomial", "--target n"
        ),
    },
    "--method": {
        name: Row(f"--method {name}", "order", f"--method {'fr' if name != 'fr' else 'omp'}", ORDERS)
        for name in ("omp", "fr", "cp", "single", "no-whiten", "sparse")
    },
    "--task": {
        "auto": Row("--task auto", "classes", "--task regression", "--target c"),
        "regression": Row("--task regression", "classes", "", "--target b"),
        "binary": Row("--task binary", "classes", "", "--target half"),
        "multiclass": Row("--task multiclass", "classes", "", "--target n"),
        "count": Row("--task count", "coefficients", "", "--target n"),
    },
    "--clamp": {
        "off": Row("--clamp off", "ranges", "", "--basis hinge"),
        "outliers": Row("--clamp outliers", "ranges"),
        "auto": Row("--clamp auto", "ranges", "", "--basis hinge"),
    },
    "--policy": {
        "prefix": Row("--policy prefix", "text", "--policy best", "best.safetensors orders.csv"),
        "best": Row("--policy best", "text", "", "best.safetensors orders.csv"),
        "arrived": Row("--policy arrived", "text", "", "m.safetensors lacking.csv"),
    },
    "--to": {
        "json": Row("--to json", "out", "--to c", shows='{"'),
        "c": Row("--to c", "out", "--to json", shows="#include"),
    },
    "words": {
        "--alpha cv": Row("--alpha cv", "alphas"),
        "--min-level-rows auto": Row("--min-level-rows auto", "selected"),
        "--pairs auto": Elsewhere("tests/models/training/test_pairs.py", "def test_auto_keeps_the_pairs_that_help"),
    },
}
OWNERS: dict[str, Any] = {
    "--basis": BASES,
    "--family": FAMILIES,
    "--method": methods(),
    "--task": ["auto", *get_args(Task)],
    "--clamp": CLAMPS,
    "--policy": get_args(Policy),
    "--to": EXPORTS,
}
COMMAND_OF = {"--policy": "predict", "--to": "export"}


def parameters(command: Any) -> set[str]:
    """Return the names that the help of a command lists."""
    return {
        name
        for each in command.params
        for name in ([each.name] if each.param_type_name == "argument" else [*each.opts, *each.secondary_opts])
    }


def test_every_parameter_of_every_command_has_a_row(application: TyperGroup) -> None:
    context: Any = None
    names = {name: parameters(application.get_command(context, name)) for name in application.list_commands(context)}
    assert {name: set(rows) for name, rows in TABLES.items()} == names


@pytest.mark.parametrize("option", OWNERS)
def test_every_value_of_an_option_has_a_row(option: str) -> None:
    assert set(VALUES[option]) == set(OWNERS[option])


class Desk:
    """A folder with tables, groups and models, and the results of the calls so far."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], Seen] = {}
        self.threads: list[int] = []
        self.settings: list[dict[str, Any]] = []

    def call(self, capsys: pytest.CaptureFixture[str], *words: str) -> Seen:
        """Return the result of a call, which is made once."""
        if words not in self.known:
            self.known[words] = self.made(capsys, *words)
        return self.known[words]

    def made(self, capsys: pytest.CaptureFixture[str], *words: str) -> Seen:
        """Make a call; return what it prints and writes."""
        for file in Path("out").iterdir():
            file.unlink()
        self.threads.clear()
        self.settings.clear()
        capsys.readouterr()
        code, printed = main(words), capsys.readouterr()
        seen: dict[str, Any] = {"code": code, "out": printed.out, "err": printed.err, "json": numbers_of(printed.out)}
        written = sorted(Path("out").iterdir())
        seen |= {"files": [file.name for file in written], "threads": max(self.threads, default=None)}
        seen |= {"settings": [*self.settings]}
        for file in written:
            seen |= of_file(file)
        return seen


@pytest.fixture(scope="module")
def application() -> TyperGroup:
    commands: TyperGroup = importlib.import_module("anytime.cli.main")._Commands(name="anytime")
    return commands


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        desk = Desk()
        patch.chdir(tmp_path_factory.mktemp("desk"))
        patch.setattr(sys, "path", [*sys.path, ""])
        patch.setattr(run, "serve", lambda _, settings: desk.settings.append(settings.model_dump()))
        patch.setattr(story, "run_demo", lambda **options: desk.settings.append(options))
        patch.setattr(learning, "SAMPLE_VALUES", 400)  # of eight columns or more, a sample is not all rows

        def jobs(number: int | None) -> int:
            desk.threads.append(number or 0)
            return 1

        patch.setattr(accumulate, "effective_n_jobs", jobs)
        patch.setattr(certify, "Parallel", lambda n_jobs, **others: Parallel(n_jobs=jobs(n_jobs), **others))
        Path("out").mkdir()
        Path("extracting.py").write_text(EXTRACTORS)
        clock = importlib.import_module("extracting").NOW
        patch.setitem(profiling.profile.__kwdefaults__ or {}, "clock", lambda: clock[0])
        files()
        yield desk
        del sys.modules["extracting"]


@pytest.mark.parametrize(("command", "name", "row"), cases(TABLES))
def test_every_option_has_an_effect(
    command: str, name: str, row: Row | Elsewhere, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    check(row, lambda *more: desk.call(capsys, command, *merged(BASE[command], *filter(None, more))))


@pytest.mark.parametrize(("option", "value", "row"), cases(VALUES))
def test_every_value_has_an_effect(
    option: str, value: str, row: Row | Elsewhere, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMAND_OF.get(option, "train")
    check(row, lambda *more: desk.call(capsys, command, *merged(BASE[command], *filter(None, more))))


def test_every_name_in_the_guides_tables_has_a_row() -> None:
    options = {name for rows in TABLES.values() for name in rows}
    for guide in ("tables", "train"):
        assert named(f"models/guides/{guide}.md", "option") <= options
    assert named("models/guides/columns.md", "`--basis`") <= set(VALUES["--basis"])
    assert named("models/guides/choices.md", "`--method`") | {"--cost-blind"} <= {*VALUES["--method"], *options}
    assert named("models/guides/choices.md", "`--family`", 1) == set(FAMILIES)


@pytest.mark.parametrize("command", [name for name, rows in TABLES.items() if Row in map(type, rows.values())])
def test_the_same_call_has_the_same_result(command: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (desk.made(capsys, command, *merged(BASE[command])) for _ in range(2))
    assert first == second
