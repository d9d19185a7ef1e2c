"""A real browser on the console, and learned models for it to show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.certificate.certify import certify
from anytime.model.model import Model
from anytime.types import FamilyName
from service.serving import GROUPS, changed

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page, Playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser's program, None where there is none."""

TAGGED = "<i>tag</i>"
"""Name of a group that would be markup, were it not taken as text."""

SEPARATE_COST = {
    "cost_unit": "dollars",
    "groups": [
        {"name": "many", "features": [f"m{j}" for j in range(20)], "cost": 2.0},
        {"name": TAGGED, "features": ["t"], "cost": 1.0},
    ],
}


@cache
def regression() -> Model:
    """A model of a number, with shared costs: speed, then hog, then blood and lab; `l0` is 0 or 1."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)) @ np.array([[1, 0.6, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) + 5.0
    X[:, 3] = rng.random(400) < 0.3
    y = X @ np.array([3.0, 2.0, -1.5, 1.5]) + rng.normal(size=400)
    return named(AnytimeRegressor(GROUPS, alpha="cv", basis="linear").fit(X, y), "brake")


def certified_regression() -> Model:
    """As `regression`, under the name `sure`; what no set of groups can exceed is known of each prefix."""
    return changed(certify(regression(), nodes=1), name="sure", version="v1")


def classification(family: FamilyName = "gaussian", name: str = "light") -> Model:
    """A model of three classes, by least squares with a guarantee; one group is wide, one has tags in its name."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 21))
    y = np.array(["stop", "slow", "go"])[np.digitize(2 * X[:, 0] + X[:, 20], [-1.0, 1.0])]
    return named(AnytimeClassifier(SEPARATE_COST, family=family, alpha="cv", basis="linear").fit(X, y), name)


def likelihoods() -> list[Model]:
    """`softmax` has the three classes, `alarm` two, and `visits` counts."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 4)) + 5.0
    eta = (X - 5.0) @ np.array([0.3, 0.5, -0.2, 0.2])
    alarm = np.where(eta + 0.3 * rng.logistic(size=400) > 0, "yes", "no")
    counts = rng.poisson(np.exp(0.7 + eta))
    return [
        classification("multinomial", "softmax"),
        named(AnytimeClassifier(GROUPS, family="binomial", alpha="cv", basis="linear").fit(X, alarm), "alarm"),
        named(
            AnytimeRegressor(GROUPS, family="poisson", alpha="cv", basis="linear").fit(
                X, pd.Series(counts, name="visits")
            ),
            "visits",
        ),
    ]


NUMBERS = [f"k{j}" for j in range(14)]
TRIPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "ticket", "features": ["port", "fare"], "cost": 1.0},
        {"name": "person", "features": ["sex", "berths", "wet"], "cost": 2.0},
        {"name": "log", "features": [*NUMBERS[:7], "deck", *NUMBERS[7:]], "cost": 4.0},
    ],
    "bases": {"berths": "categories", "wet": "categories"},
}
BONN = "Bonn, on the left bank of the Rhine, a few kilometres upstream of Cologne"
HARBOURS = {"Oslo": 10.0, "Rome": 20.0, BONN: 30.0, "other": 40.0, "Bern": 60.0, "Kyiv": 60.0, "Lima": 60.0}


@cache
def trips() -> Model:
    """A model of text, gaps and numbers: y = harbour + 10 (sex is f) + berths^2 + 5 wet + fare/2 + k0 + 3 (deck is B).

    Three harbours are rare. A quarter of the fares, which are 0 to 20, is missing and adds nothing. The group `log` has
    one column of text among 14 of numbers.
    """
    rng = np.random.default_rng(3)
    harbours = [*["Oslo", "Rome", BONN, "other"] * 120, *["Bern", "Kyiv", "Lima"] * 3]
    rows = len(harbours)
    frame = pd.DataFrame({"port": harbours})
    frame["fare"] = np.where(rng.random(rows) < 0.25, np.nan, rng.integers(0, 21, rows))
    frame["sex"] = rng.choice(["m", "f"], rows)
    frame["berths"] = rng.choice([1, 2, 4], rows)
    frame["wet"] = rng.random(rows) < 0.5
    frame["deck"] = rng.choice(["A", "B"], rows)
    frame[NUMBERS] = rng.normal(size=(rows, 14)).round(2)
    y = frame["port"].map(HARBOURS) + 10 * (frame["sex"] == "f") + frame["berths"] ** 2 + 5 * frame["wet"]
    y += frame["fare"].fillna(0) / 2 + frame["k0"] + 3 * (frame["deck"] == "B")
    return named(AnytimeRegressor(TRIPS, alpha=1e-9, basis="hinge").fit(frame, y), "trips")


def paired() -> Model:
    """A model of y = a b + c, with a pair of a and b."""
    X = np.random.default_rng(5).normal(size=(400, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return named(AnytimeRegressor(pairs=1, basis="linear").fit(frame, X[:, 0] * X[:, 1] + X[:, 2]), "paired")


def named(estimator: Any, name: str) -> Model:
    return changed(estimator.model_, name=name, version="v1")


@contextmanager
def browsing(playwright: Playwright) -> Iterator[BrowserContext]:
    """Start Chromium without a screen; a profile on disk stores compiled scripts for further pages."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        context = playwright.chromium.launch_persistent_context(profile, executable_path=CHROMIUM)
        try:
            yield context
        finally:
            context.close()


def expect_of(locator: Locator) -> Any:
    from playwright.sync_api import expect  # noqa: PLC0415  (it may not be installed)

    return expect(locator)


@dataclass
class Visit:
    """The console in a tab, and what the tab asked for and complained of."""

    page: Page
    url: str
    origins: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", lambda socket: self._asked(socket.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type != "log" else None)

    def _asked(self, url: str) -> None:
        self.origins.add(urlsplit(url).netloc)

    def open(self) -> Visit:
        """Go to the page and wait for its first answer."""
        self.page.goto(self.url)
        self.begun()
        return self

    def begun(self) -> None:
        """Wait for the first answer."""
        self.facts.filter(has_text="nothing is sent yet").wait_for()

    def leave(self) -> None:
        """Close the tab, which asked nothing of other sites and complained of nothing but failed requests."""
        self.page.close()
        assert self.origins == {urlsplit(self.url).netloc}
        assert not [each for each in self.complaints if not each.startswith(("Failed to load resource", "WebSocket"))]

    def named(self, name: str) -> Locator:
        """The element of an id; the first fact is the `step`."""
        return self.facts.first if name == "step" else self.page.locator(f"#{name.replace('_', '-')}")

    def shows(self, **texts: str) -> None:
        """Wait until elements, by name, have these texts and no others."""
        for name, text in texts.items():
            expect_of(self.named(name)).to_have_text(text)

    def says(self, **texts: str) -> None:
        """Wait until elements, by name, contain these texts."""
        for name, text in texts.items():
            expect_of(self.named(name)).to_contain_text(text)

    def predict_by_the_documentation(self) -> None:
        """Request a prediction by the page of routes, which is open."""
        operation = self.page.locator("#operations-predictions-predict")
        operation.get_by_role("button").first.click()
        operation.get_by_text("Maximum cost per row of the groups used").wait_for()
        operation.get_by_role("button", name="Try it out").click()
        operation.locator("textarea").fill('{"groups": {}}')
        operation.locator("input[placeholder=model]").fill("brake")
        operation.get_by_role("button", name="Execute").click()
        operation.locator(".live-responses-table").get_by_text('"prediction"').wait_for()

    def choose(self, model: str) -> None:
        self.page.get_by_label("Model").select_option(model)
        self.page.locator("#about").get_by_text(model).wait_for()

    @property
    def facts(self) -> Locator:
        return self.page.locator("#facts li")

    @property
    def play(self) -> Locator:
        return self.page.locator("#play")

    def group(self, name: str) -> Locator:
        return self.page.get_by_role("group", name=name, exact=True)

    def tick(self, *names: str) -> None:
        """Tick groups by the keyboard: an answer to the one before may move the page while the mouse clicks."""
        for name in names:
            self.group(name).get_by_role("checkbox").press("Space")
            expect_of(self.group(name).get_by_role("checkbox")).to_be_checked()

    def values(self) -> dict[str, list[float]]:
        """What is in the inputs of each group."""
        groups = {}
        for card in self.page.locator("#row fieldset").all():
            texts = [each.input_value() for each in card.locator(".values input, .values textarea").all()]
            groups[card.get_attribute("data-group") or ""] = [float(x) for text in texts for x in text.split(",")]
        return groups

    def column(self, table: str, index: int) -> list[str]:
        """Texts of one column of a table's body."""
        return self.page.locator(f"#{table} tbody tr > :nth-child({index + 1})").all_text_contents()
