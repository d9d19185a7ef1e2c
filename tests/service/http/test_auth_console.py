"""The console where keys are needed: it asks for one, and uses it on both ways to the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

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
def console(file: Path) -> Iterator[Running]:
    file.write_text(f"{HASHED}\n")
    settings = Settings(port=0, api_keys=KEYS.split(",")[0], api_keys_file=file)
    with running(
        create_app(ModelRegistry.of([regression()]), settings, tuning=Tuning(key_check_s=0.05)), settings
    ) as service:
        yield service


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright, browsing(playwright) as context:
        yield context


@pytest.fixture
def visit(console: Running, browser: BrowserContext) -> Iterator[Visit]:
    page = browser.new_page()
    page.goto(console.url)
    yield Visit(page, console.url)
    page.close()


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
    expect(visit.page.locator("#key-problem")).to_be_empty()
    assert visit.page.get_by_label("Key", exact=True).get_attribute("type") == "password"
    tell(visit, key)
    begun(visit)
    expect(asked).to_be_hidden()
    visit.tick("speed")
    expect(visit.facts.first).to_have_text("step 1 of 3, 1 of 10 ms")
    assert key not in visit.page.url
    expect(visit.page.get_by_role("link", name="Routes of this service")).to_be_hidden()
    visit.page.reload()
    begun(visit)


def test_the_key_is_stored_for_its_tab_only(visit: Visit, browser: BrowserContext) -> None:
    tell(visit, PREDICTING)
    begun(visit)
    assert browser.cookies() == []
    assert visit.page.evaluate("localStorage.length") == 0
    assert PREDICTING not in visit.page.content()
    other = browser.new_page()
    other.goto(visit.url)
    expect(other.get_by_label("Key", exact=True)).to_be_focused()
    other.close()


@pytest.mark.parametrize("wrong", [WRONG, "ключ", "two words"])
def test_a_wrong_key_is_reported_and_can_be_replaced(visit: Visit, wrong: str) -> None:
    tell(visit, wrong)
    expect(visit.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    field = visit.page.get_by_label("Key", exact=True)
    expect(field).to_have_attribute("aria-invalid", "true")
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
    expect(visit.facts.first).to_have_text("step 2 of 3, 5 of 10 ms")


def test_the_routes_are_shown_and_tried_out_with_a_key_that_no_other_site_gets(visit: Visit) -> None:
    visit.page.goto(f"{visit.url}/docs")
    asked = visit.page.get_by_role("heading", name="This service requires an API key")
    expect(asked).to_be_visible()
    for wrong in (WRONG, "a key with spaces"):
        tell(visit, wrong)
        expect(visit.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    tell(visit, PREDICTING)
    expect(asked).to_be_hidden()
    operation = visit.page.locator("#operations-predictions-predict")
    operation.get_by_role("button").first.click()
    operation.get_by_role("button", name="Try it out").click()
    operation.locator("textarea").fill('{"groups": {}}')
    operation.get_by_role("button", name="Execute").click()
    operation.locator(".live-responses-table").get_by_text('"prediction"').wait_for()
    assert visit.origins == {urlsplit(visit.url).netloc}
