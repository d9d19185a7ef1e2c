"""The console where keys are needed: it asks for one, and uses it on both ways to the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anytime_service.app import create_app
from anytime_service.limits.tuning import Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.browser import CHROMIUM, Visit, browsing, regression
from service.doors import HASHED, KEYS, PREDICTING, WRONG
from service.serving import Running, running

pytest.importorskip("playwright.sync_api", reason="no browser tests without playwright (pip)")
from playwright.sync_api import BrowserContext, expect, sync_playwright

if CHROMIUM is None:
    pytest.skip("no browser tests without chromium (apt-get install chromium)", allow_module_level=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def service(file: Path) -> Iterator[Running]:
    file.write_text(f"{HASHED}\n")
    settings = Settings(port=0, api_keys=KEYS.split(",")[0], api_keys_file=file)
    app = create_app(ModelRegistry.of([regression()]), settings, tuning=Tuning(key_check_s=0.05))
    with running(app, settings) as service:
        yield service


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright, browsing(playwright) as context:
        yield context


@pytest.fixture
def visit(service: Running, browser: BrowserContext) -> Iterator[Visit]:
    visit = Visit(browser.new_page(), service.url)
    visit.page.goto(service.url)
    yield visit
    visit.leave()


def tell(visit: Visit, key: str) -> None:
    """Type a key, by keyboard alone."""
    field = visit.page.get_by_label("Key", exact=True)
    expect(field).to_be_focused()
    visit.page.keyboard.type(key)
    visit.page.keyboard.press("Enter")


def begun(visit: Visit) -> None:
    visit.facts.filter(has_text="nothing is sent yet").wait_for()


@pytest.mark.parametrize("key", [PREDICTING, HASHED])
def test_the_page_requests_a_key_and_works_with_it(visit: Visit, key: str) -> None:
    asked = visit.page.get_by_role("heading", name="This service requires an API key")
    expect(asked).to_be_visible()
    expect(visit.play).to_be_hidden()
    visit.shows(key_problem="")
    assert visit.page.get_by_label("Key", exact=True).get_attribute("type") == "password"
    tell(visit, key)
    begun(visit)
    expect(asked).to_be_hidden()
    visit.tick("speed")
    visit.shows(step="step 1 of 3, 1 of 10 ms")
    assert key not in visit.page.url
    expect(visit.page.get_by_role("link", name="Routes of this service")).to_be_hidden()
    visit.page.reload()
    begun(visit)


def test_the_key_is_stored_for_its_tab_only(visit: Visit, browser: BrowserContext) -> None:
    tell(visit, PREDICTING)
    begun(visit)
    assert (browser.cookies(), visit.page.evaluate("localStorage.length")) == ([], 0)
    assert PREDICTING not in visit.page.content()
    other = browser.new_page()
    other.goto(visit.url)
    expect(other.get_by_label("Key", exact=True)).to_be_focused()
    other.close()


@pytest.mark.parametrize("wrong", [WRONG, "ключ", "two words"])
def test_a_wrong_key_is_reported_and_can_be_replaced(visit: Visit, wrong: str) -> None:
    tell(visit, wrong)
    expect(visit.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    expect(visit.page.get_by_label("Key", exact=True)).to_have_attribute("aria-invalid", "true")
    assert visit.page.evaluate("sessionStorage.length") == 0
    tell(visit, PREDICTING)
    begun(visit)


def test_the_page_requests_a_new_key_after_the_key_is_replaced(visit: Visit, file: Path) -> None:
    tell(visit, HASHED)
    begun(visit)
    file.write_text(f"{PREDICTING}0\n")
    expect(visit.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    tell(visit, f"{PREDICTING}0")
    begun(visit)
    visit.tick("speed", "hog")
    visit.shows(step="step 2 of 3, 5 of 10 ms")


def test_the_routes_are_shown_and_tried_out_with_a_key_that_no_other_site_gets(visit: Visit) -> None:
    visit.page.goto(f"{visit.url}/docs")
    asked = visit.page.get_by_role("heading", name="This service requires an API key")
    expect(asked).to_be_visible()
    for wrong in (WRONG, "a key with spaces"):
        tell(visit, wrong)
        expect(visit.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    tell(visit, PREDICTING)
    expect(asked).to_be_hidden()
    visit.predict_by_the_documentation()
