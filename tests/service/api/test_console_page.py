"""The console in a real browser: what a person can do there, by mouse, by keyboard and by ear."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.limits.tuning import Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.browser import (
    BONN,
    CHROMIUM,
    TAGGED,
    Visit,
    browsing,
    certified_regression,
    classification,
    likelihoods,
    paired,
    regression,
    trips,
)
from service.doors import HASHED, KEYS, PREDICTING, WRONG
from service.serving import Running, run_service, running

pytest.importorskip("playwright.sync_api", reason="no browser tests without playwright (pip)")
from playwright.sync_api import BrowserContext, WebSocketRoute, expect, sync_playwright

if CHROMIUM is None:
    pytest.skip("no browser tests without chromium (apt-get install chromium)", allow_module_level=True)

expect.set_options(timeout=60_000)

SETTINGS = Settings(port=0)
ROWS = "#{}-chart tr:not(.heads) > {}"
NO_STEP, EVERY_STEP = "step 0 of 3, 0 of 10 ms", "step 3 of 3, 10 of 10 ms"
PLAY_MS = 6_000
"""Playing takes 5 s, which tests skip."""


@pytest.fixture(scope="module")
def app() -> AnytimeAPI:
    models = [regression(), certified_regression(), classification(), *likelihoods(), trips(), paired()]
    return create_app(ModelRegistry.of(models), SETTINGS)


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """A browser in which tests can skip time."""
    with sync_playwright() as playwright, browsing(playwright) as context:
        context.clock.install()
        yield context


@pytest.fixture
def visit(service: Running, browser: BrowserContext) -> Iterator[Visit]:
    """A visit, at whose end nothing was asked of other sites and the browser has complained of nothing."""
    visit = Visit(browser.new_page(), service.url).open()
    yield visit
    visit.leave()


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def test_the_routes_are_documented_without_a_request_to_another_site(visit: Visit) -> None:
    visit.page.goto(f"{visit.url}/docs")
    visit.predict_by_the_documentation()


def test_the_curve_its_guarantee_and_its_certificate_are_drawn_and_told_in_numbers(
    visit: Visit, service: Running
) -> None:
    legend, headings = visit.page.locator("#curve-chart .legend span"), visit.page.locator("#steps thead th")
    expect(legend).to_have_text(["training", "cross-validated", "this answer"])
    expect(headings.last).to_have_text("Guaranteed")
    points = service.get("/models/brake/curve").json()["points"]
    assert visit.column("steps", 5) == [percent(point["r2"]) for point in points]
    assert visit.column("steps", 6) == [percent(point["cv_r2"]) for point in points]
    visit.says(promise="groups that require others")
    visit.choose("light")
    expect(legend).to_have_text(["training", "cross-validated", "guaranteed", "this answer"])
    visit.says(promise="Theorem 3.2")
    visit.choose("sure")
    expect(legend).to_have_text(
        ["training", "cross-validated", "training, minus the penalty", "best possible, certified", "this answer"]
    )
    expect(headings.last).to_have_text("Of the best possible, at least")
    shares = [point["certified_share"] for point in service.get("/models/sure/curve").json()["points"]]
    assert visit.column("steps", 9) == [f"{math.floor(1000 * share + 1e-6) / 10:.1f} %" for share in shares]
    visit.says(promise="no set of groups of the same cost explains more than")


def test_play_by_keyboard_moves_the_answer_from_the_base_rate_to_the_whole(visit: Visit, service: Running) -> None:
    visit.shows(step=NO_STEP)
    visit.play.focus()
    visit.page.keyboard.press("Enter")
    visit.shows(play="Interrupt")
    visit.says(doing="computing")
    visit.page.clock.run_for(PLAY_MS)
    visit.shows(play="Play", step=EVERY_STEP)
    reported = service.post({"groups": visit.values()}, model="brake").json()
    shown = [float(visit.named(name).inner_text().removeprefix("± ")) for name in ("prediction", "error")]
    assert shown == pytest.approx([reported["prediction"], reported["expected"]["cv_error"] ** 0.5], rel=1e-3)
    assert [float(cost) for cost in visit.column("trail", 0)] == [0, 1, 5, 10]
    expect(visit.page.get_by_role("status")).to_contain_text("step 3 of 3")
    assert set(visit.column("steps", 2)) == {"used"}
    assert visit.complaints == [], "every file of the page is there"


def test_a_short_deadline_of_the_service_does_not_cut_the_play(browser: BrowserContext) -> None:
    with run_service([regression()], Settings(port=0, max_deadline_ms=300)) as service:
        visit = Visit(browser.new_page(), service.url).open()
        visit.play.click()
        expect(visit.facts.filter(has_text="maximum deadline of the service expired")).to_be_visible()
        visit.shows(play="Interrupt")
        visit.page.clock.run_for(PLAY_MS)
        visit.shows(play="Play", step=EVERY_STEP)
        visit.leave()


@pytest.fixture
def halted(visit: Visit) -> Iterator[Visit]:
    """A visit whose time stands still; "speed" takes 1 of 10 ms, so 500 of the 5,000 ms that playing takes."""
    visit.page.clock.pause_at(visit.page.evaluate("Date.now()") / 1000 + 3600)
    visit.play.click()
    visit.says(doing="computing speed")
    visit.page.clock.run_for(600)
    visit.shows(step="step 1 of 3, 1 of 10 ms")
    yield visit
    visit.page.clock.resume()


def test_an_interruption_is_answered_with_what_is_here(halted: Visit) -> None:
    halted.play.press("Space")
    halted.shows(play="Play")
    expect(halted.page.get_by_role("status")).to_contain_text("missing: hog, lab")
    expect(halted.group("hog").get_by_role("checkbox")).not_to_be_checked()


def test_the_last_answer_does_not_outlive_what_it_was_asked_for(halted: Visit) -> None:
    halted.page.get_by_role("button", name="Clear").click()
    halted.page.clock.run_for(10_000)  # in which the play would have gone on
    halted.shows(play="Play", step=NO_STEP)


def test_the_slider_by_keyboard_limits_the_prefix(visit: Visit) -> None:
    visit.tick("speed", "hog", "lab")
    visit.shows(step=EVERY_STEP)
    slider, budget = visit.page.get_by_role("slider"), visit.page.get_by_label("Budget in ms")
    slider.press("ArrowLeft")
    visit.shows(step="step 2 of 3, 5 of 10 ms")
    expect(slider).to_have_attribute("aria-valuetext", "5 ms: Allows 2 of 3 steps, up to hog.")
    expect(visit.facts.last).to_contain_text("not counted: lab – beyond the budget")
    assert visit.column("steps", 2)[-1] == "beyond the budget"
    expect(budget).to_have_value("5")
    for key, step in (("Home", NO_STEP), ("End", EVERY_STEP)):
        slider.press(key)
        visit.shows(step=step)
    budget.fill("1.5")
    visit.shows(step="step 1 of 3, 1 of 10 ms")
    expect(slider).to_have_value("1")


def test_a_group_out_of_order_is_named_with_what_it_waits_for_and_counts_by_the_other_policy(visit: Visit) -> None:
    visit.tick("hog")
    visit.shows(step=NO_STEP)
    expect(visit.facts.filter(has_text="missing: speed, lab")).to_be_visible()
    expect(visit.facts.filter(has_text="not counted: hog")).to_contain_text("first missing is speed")
    assert visit.column("steps", 2) == ["used", "missing speed", "sent, not counted", "missing lab"]
    visit.page.get_by_label("all groups received").check()
    visit.shows(step="1 arrived groups used, 4 of 10 ms")
    assert visit.column("steps", 2)[2] == "used"


def test_a_value_that_cannot_be_used_is_told_where_it_is_until_it_is_mended(visit: Visit) -> None:
    problem, value = visit.group("hog").locator(".problem"), visit.page.get_by_label("h1")
    value.fill("fast")
    expect(problem).to_contain_text("expected")
    expect(value).to_have_attribute("aria-invalid", "true")
    expect(value).to_have_attribute("aria-describedby", problem.get_attribute("id") or "none")
    expect(problem).to_have_attribute("aria-live", "polite")
    expect(visit.group("speed").locator(".problem")).to_be_empty()
    value.fill("4.5")
    expect(problem).to_be_empty()
    expect(value).not_to_have_attribute("aria-invalid", "true")


def test_a_budget_that_cannot_be_is_told_beside_it(visit: Visit) -> None:
    for text in ("-1", "much"):
        visit.page.get_by_label("Budget in ms").fill(text)
        visit.says(budget_problem="expected", doing="an earlier request")
        visit.shows(problem="")
        visit.page.get_by_label("Budget in ms").fill("")
        visit.shows(budget_problem="", doing="")


def test_a_refused_group_does_not_keep_the_play_from_its_end(visit: Visit) -> None:
    visit.page.get_by_label("l0").fill("1e999")
    problem = visit.group("lab").locator(".problem")
    expect(problem).not_to_be_empty()
    visit.play.click()
    visit.page.clock.run_for(PLAY_MS)
    visit.shows(play="Play", step="step 2 of 3, 5 of 10 ms")
    expect(problem).to_contain_text("expected")


@pytest.mark.parametrize("times", [1, 99], ids=["its base rate", "every time"])
def test_a_play_that_is_refused_ends_unless_only_its_base_rate_was(
    visit: Visit, app: AnytimeAPI, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    refusals = iter(range(times))
    monkeypatch.setattr(app.state.service.admission, "admits", lambda _: next(refusals, None) is None)
    visit.play.click()
    visit.says(problem="more requests than it can answer in time")
    if times == 1:
        visit.page.clock.run_for(PLAY_MS)
        visit.shows(play="Play", step=EVERY_STEP)
    else:
        visit.shows(play="Play")
        visit.says(doing="an earlier request")
        expect(visit.page.locator("#row [data-state=computing]")).to_have_count(0)


def test_another_row_and_a_clear_one_begin_anew_and_why_there_is_no_other_is_told(visit: Visit) -> None:
    before = visit.values()
    visit.tick("speed")
    visit.shows(step="step 1 of 3, 1 of 10 ms")
    visit.page.get_by_role("button", name="Clear").click()
    visit.shows(step=NO_STEP)
    visit.page.get_by_role("button", name="Another row").click()
    expect(visit.page.get_by_label("v", exact=True)).not_to_have_value(str(before["speed"][0]))
    before = visit.values()
    refusal = {"title": "Too much", "status": 503, "detail": "no row can be made up now"}
    visit.page.route("**/sample?*", lambda route: route.fulfill(status=503, json=refusal))
    visit.page.get_by_role("button", name="Another row").click()
    visit.shows(problem="no row can be made up now")
    assert visit.values() == before


def test_a_row_made_up_for_one_model_does_not_fill_the_row_of_another(visit: Visit) -> None:
    visit.page.evaluate(
        """() => {
            const fetched = window.fetch;
            window.fetch = async (url, options) => {
                const response = await fetched(url, options);
                if (!String(url).includes("alarm/sample")) return response;
                const sample = await response.json();
                await new Promise((go) => { window.letGo = go; });
                return { ok: true, status: 200, json: async () => sample };
            };
        }"""
    )
    visit.page.get_by_label("Model").select_option("alarm")
    visit.page.wait_for_function("() => window.letGo")
    visit.choose("visits")
    visit.page.get_by_label("v", exact=True).fill("77")
    visit.page.get_by_label("Budget in ms").fill("5")
    visit.page.evaluate("() => new Promise((seen) => { window.letGo(); setTimeout(seen); })")
    assert visit.values()["speed"] == [77.0]
    expect(visit.page.get_by_label("Budget in ms")).to_have_value("5")


def test_a_softmax_model_tells_its_classes_and_what_it_explains_of_the_deviance(visit: Visit, service: Running) -> None:
    expect(visit.page.get_by_label("Model").locator("option")).to_have_text(
        ["brake", "sure", "light", "softmax", "alarm", "visits", "trips", "paired"]
    )
    visit.shows(curve_title="R² against cost")
    visit.choose("softmax")
    visit.shows(curve_title="Deviance explained against cost")
    visit.says(curve_says="of the deviance in training", about="multiclass (multinomial)")
    heads = visit.page.locator("#steps thead th").all_text_contents()
    assert {"Deviance explained, training", "Deviance, cross-validated"} <= set(heads)
    visit.tick("many", TAGGED)
    visit.shows(step="step 2 of 2, 3 of 3 dollars")
    reported = service.post({"groups": visit.values()}, model="softmax").json()
    visit.shows(prediction=reported["prediction"])
    expect(visit.page.locator(ROWS.format("answer", "th"))).to_have_text(["go", "slow", "stop"])
    shares = [percent(share) for share in reported["probabilities"]]
    expect(visit.page.locator(ROWS.format("answer", "td:last-child"))).to_have_text(shares)
    shades = visit.page.locator("#answer-chart .plane div").evaluate_all(
        "bars => bars.map((bar) => getComputedStyle(bar).backgroundColor)"
    )
    chosen = shades[["go", "slow", "stop"].index(reported["prediction"])]
    assert shades.count(chosen) == 1, "the class that is chosen stands out"
    assert visit.column("trail", 2)[-1].count("%") == 3
    assert visit.page.locator("i:not(.legend i)").count() == 0, "names are text and never markup"
    visit.page.get_by_label("all groups received").check()
    visit.says(policy_says="supports prefixes only")
    expect(visit.facts.filter(has_text="the prefix policy answered")).to_be_visible()


@pytest.mark.parametrize("name", ["alarm", "visits"])
def test_an_approximate_answer_says_so(visit: Visit, name: str) -> None:
    visit.choose(name)
    visit.tick("hog")
    expect(visit.facts.filter(has_text="not counted: hog")).to_be_visible()
    expect(visit.facts.filter(has_text="approximate")).to_have_count(0)
    visit.page.get_by_label("all groups received").check()
    expect(visit.facts.filter(has_text="approximate: one Newton step")).to_be_visible()
    expect(visit.facts.filter(has_text="of the deviance in training")).to_contain_text("at least")
    visit.says(policy_says="approximate")


def test_a_count_is_a_number_without_the_error_bar_of_least_squares(visit: Visit, service: Running) -> None:
    visit.choose("visits")
    visit.tick("speed", "hog", "lab")
    visit.shows(step=EVERY_STEP, error="")
    reported = service.post({"groups": visit.values()}, model="visits").json()
    assert float(visit.named("prediction").inner_text()) == pytest.approx(reported["prediction"], rel=1e-3)
    expect(visit.page.locator("#answer-chart .heads td").last).to_have_text("expected visits")


def enter_trip(visit: Visit) -> None:
    """Enter a row of `trips` with y = 20 (Rome) + 8/2 (fare) + 10 (f) + 4^2 (berths) + 5 (wet) + 1 (k0) + 3 (B)."""
    visit.choose("trips")
    for column, text in {"port": "Rome", "sex": "f", "berths": "4", "wet": "true", "deck": "B"}.items():
        visit.page.get_by_label(column, exact=True).select_option(text)
    visit.page.get_by_label("fare").fill("8")
    visit.page.get_by_label("14 numbers, k0 to k13").fill("1" + ", 0" * 13)
    visit.shows(step="step 3 of 3, 7 of 7 ms")


def test_levels_are_chosen_from_a_list_and_sent_as_they_were_in_the_table(visit: Visit) -> None:
    enter_trip(visit)
    for column, levels in {
        "port": [BONN, "Oslo", "Rome", "other", "(other)"],
        "sex": ["f", "m"],  # every value was a level
        "berths": ["1", "2", "4"],
        "wet": ["false", "true"],
    }.items():
        options = visit.page.get_by_label(column, exact=True).locator("option").all_text_contents()
        assert sorted(options) == sorted([*levels, "(missing)"])
    visit.shows(prediction="59")
    for column, level, y in (
        ("port", BONN, "69"),
        ("port", "other", "79"),
        ("port", "(other)", "99"),
        ("port", "Oslo", "49"),
        ("wet", "false", "44"),
    ):
        visit.page.get_by_label(column).select_option(level)
        visit.shows(prediction=y)
    visit.page.get_by_label("fare").fill("")  # a missing fare adds nothing, which its indicator has learned
    visit.shows(prediction="40")


def test_a_value_that_counts_as_something_else_is_stated(visit: Visit) -> None:
    enter_trip(visit)
    expect(visit.page.locator("#facts .lacking")).to_have_count(0)
    visit.page.get_by_label("port").select_option("(other)")
    visit.page.get_by_label("sex").select_option("(missing)")
    visit.page.get_by_label("fare").fill("95")
    expect(visit.page.locator("#facts .lacking")).to_have_text(
        [
            "filled by training means: sex",
            "not a level of the model, counts as other: port",
            "outside the model's range: fare (95 counts as 20)",
        ]
    )
    visit.page.get_by_label("sex").select_option("m")
    visit.shows(prediction="95")  # 60 (rare harbours) + 20/2 + 16 + 5 + 1 + 3


def test_a_list_of_numbers_next_to_text_is_refused_by_its_length_until_it_is_complete(visit: Visit) -> None:
    enter_trip(visit)
    numbers, problem = visit.page.get_by_label("14 numbers"), visit.group("log").locator(".problem")
    for given, width in (("1", 2), ("1" + ", 0" * 14, 16)):
        numbers.fill(given)
        expect(problem).to_contain_text(f"1 x {width}; expected 1 x 15")
        expect(visit.page.locator("#facts .lacking")).to_have_text(["missing: log"])
        assert visit.column("steps", 2) == ["used", "used", "used", "missing log"]
    numbers.fill("2" + ", 0" * 13)
    expect(problem).to_be_empty()
    visit.shows(prediction="60")


def test_everything_that_takes_input_has_a_name_and_every_chart_a_table(visit: Visit) -> None:
    visit.page.locator("#answer-chart table").wait_for()
    unnamed = visit.page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, progress")]
            .filter((each) => !each.labels.length).map((each) => each.outerHTML)"""
    )
    assert unnamed == []
    ids = visit.page.evaluate("() => [...document.querySelectorAll('[id]')].map((each) => each.id)")
    ours = [each for each in ids if visit.page.locator(f".chart [id='{each}']").count() == 0]
    assert len(ours) == len(set(ours))
    dangling = visit.page.evaluate(
        """() => ["aria-describedby", "aria-labelledby"].flatMap((kind) =>
            [...document.querySelectorAll(`[${kind}]`)].flatMap((each) => each.getAttribute(kind).split(" ")))
            .filter((id) => !document.getElementById(id))"""
    )
    assert dangling == []
    counts = {
        ".chart:not([aria-hidden='true'])": 0,
        ".chart :is(a[href], button, input, [tabindex])": 0,
        "table:not(:has(caption))": 0,
        "html[lang]": 1,
        "h1": 1,
    }
    assert {selector: visit.page.locator(selector).count() for selector in counts} == counts


def test_the_page_needs_no_more_than_a_narrow_screen_even_with_long_levels(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 380, "height": 800})
    enter_trip(visit)
    visit.page.get_by_label("port").select_option(BONN)
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 380
    # One call reads both numbers, because the page may redraw the chart between two calls.
    box = "document.querySelector('#curve-chart svg')?.getBoundingClientRect()"
    x, width = visit.page.wait_for_function(f"(box => box?.width && [box.x, box.width])({box})").json_value()
    assert 0 <= x <= 380 - width


def test_light_and_dark_follow_the_reader_in_page_and_charts(visit: Visit) -> None:
    title = visit.page.locator("#curve-chart svg .name").first
    title.wait_for()
    shades = set()
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        back, text = visit.page.evaluate(
            "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
        )
        expect(title).to_have_css("fill", text)
        shades.add((back, text))
    assert len(shades) == 2


def test_a_lost_connection_is_told_and_the_next_change_asks_again(visit: Visit) -> None:
    sockets: list[WebSocketRoute] = []

    def lose_the_first(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        if len(sockets) == 1:
            socket.close(code=1012, reason="restart")
        else:
            socket.connect_to_server()

    visit.page.route_web_socket("**/stream", lose_the_first)
    visit.page.reload()
    visit.says(problem="restart")
    visit.tick("speed")
    visit.shows(step="step 1 of 3, 1 of 10 ms", problem="")


def test_contributions_are_a_waterfall_and_a_table_that_add_up_to_the_score(visit: Visit, service: Running) -> None:
    chart = visit.page.locator("#parts-chart")
    base = visit.named("prediction").inner_text()
    visit.shows(parts_says=f"No group is used, so nothing contributes: the base value, {base}, is the prediction.")
    expect(chart).to_be_hidden()
    visit.tick("speed", "hog", "lab")
    visit.shows(step=EVERY_STEP)
    received = service.post({"groups": visit.values(), "explain": True}, model="brake").json()
    parts = sorted(received["contributions"]["groups"].items(), key=lambda part: -abs(part[1]))
    expect(visit.page.locator("#parts-table tbody tr")).to_have_count(len(parts) + 2)
    assert visit.column("parts-table", 0) == ["base value", *(name for name, _ in parts), "score"]
    values = [received["contributions"]["intercept"], *(value for _, value in parts), received["prediction"]]
    shown = [float(text.replace("−", "-")) for text in visit.column("parts-table", 1)]
    assert shown == pytest.approx(values, rel=1e-3)
    expect(chart).to_be_visible()
    labels = visit.page.locator(ROWS.format("parts", "th"))
    expect(labels).to_have_count(len(values))
    expect(labels.nth(1)).to_contain_text(parts[0][0])
    visit.says(parts_says="plus the contributions is")
    visit.says(parts_says="the prediction")


def test_an_answer_without_contributions_says_why_there_is_no_waterfall(visit: Visit) -> None:
    explained = True

    def sent(message: Any) -> Any:
        if explained:
            return message
        return json.dumps({**json.loads(message), "contributions": None, "note": "no contributions: too many"})

    def relay(socket: WebSocketRoute) -> None:
        socket.connect_to_server().on_message(lambda message: socket.send(sent(message)))

    visit.page.route_web_socket("**/stream", relay)
    visit.open()
    visit.tick("speed")
    visit.page.get_by_role("button", name="v", exact=True).click()
    visit.says(shape_says="v is ")
    explained = False
    visit.tick("hog")
    visit.shows(
        parts_says="There are no contributions to show. The service says: no contributions: too many.", shape_says=""
    )
    for place in ("parts-chart", "shape-chart"):
        expect(visit.page.locator(f"#{place}")).to_be_hidden()
    expect(visit.page.locator("#parts-table tr, #parts tr")).to_have_count(0)


def test_no_column_or_score_of_the_model_before_is_used_until_the_first_answer_of_the_next(visit: Visit) -> None:
    silent = False

    def keep_silent(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: None if silent else socket.send(message))

    visit.page.route_web_socket("**/stream", keep_silent)
    visit.open().tick("speed")
    columns = visit.page.locator("#parts button")
    expect(columns).to_have_count(1)
    silent = True
    visit.choose("softmax")
    for column in columns.all():
        column.click()
    visit.page.get_by_label("Score of").select_option("stop")
    expect(columns).to_have_count(0)
    visit.shows(parts_says="")


def test_a_class_is_chosen_whose_contributions_are_shown(visit: Visit) -> None:
    score = visit.page.get_by_label("Score of")
    expect(score).to_be_hidden()
    visit.choose("softmax")
    visit.tick("many", TAGGED)
    expect(visit.page.locator("#parts-table tbody tr")).to_have_count(4)
    visit.says(parts_table=TAGGED)
    predicted = visit.named("prediction").inner_text()
    visit.says(parts_says=f"the score of {predicted}.")
    before = visit.named("parts_says").inner_text()
    other = next(name for name in ("stop", "slow", "go") if name != predicted)
    score.select_option(other)
    visit.says(parts_says=f"the score of {other}.")
    assert visit.named("parts_says").inner_text() != before.replace(predicted, other)


def test_the_shape_of_a_chosen_column_has_a_mark_at_the_value_of_the_row(visit: Visit) -> None:
    visit.choose("trips")
    visit.tick("ticket", "person", "log")
    chart, fare = visit.page.locator("#shape-chart"), visit.group("ticket").get_by_label("fare")
    visit.page.get_by_role("button", name="fare", exact=True).click()
    visit.says(shape_says=f"fare is {float(fare.input_value()):g} and contributes")
    expect(chart.locator(".mark")).to_have_count(1)
    expect(chart.get_by_text("missing", exact=True)).to_be_visible()
    before = visit.named("shape_says").inner_text().rpartition("contributes")
    fare.fill("")
    visit.says(shape_says="fare is missing and contributes")
    assert visit.named("shape_says").inner_text().rpartition("contributes")[2] != before[2]
    visit.page.get_by_role("button", name="port", exact=True).click()
    visit.says(shape_says="port is ")
    expect(chart.locator("svg text").filter(has_text="(other)")).to_be_visible()
    expect(chart.locator("rect")).to_have_count(10)  # five levels, and the share of each
    visit.group("ticket").get_by_role("checkbox").uncheck()
    visit.shows(shape_says="port: the answer does not use it.")
    expect(chart).to_be_hidden()


def test_the_shape_of_a_column_says_that_its_pairs_are_not_on_the_line(visit: Visit) -> None:
    visit.choose("paired")
    visit.tick("a", "b", "c")
    halves = "It includes half of each of its pairs; the line does not."
    for column, words in (("a", halves), ("c", "c is ")):
        visit.page.get_by_role("button", name=column, exact=True).click()
        visit.says(shape_says=words)
    expect(visit.named("shape_says")).not_to_contain_text(halves)


# Where a key is needed


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def guarded(key_file: Path) -> Iterator[Running]:
    key_file.write_text(f"{HASHED}\n")
    settings = Settings(port=0, api_keys=KEYS.split(",")[0], api_keys_file=key_file)
    app = create_app(ModelRegistry.of([regression()]), settings, tuning=Tuning(key_check_s=0.05))
    with running(app, settings) as service:
        yield service


@pytest.fixture
def locked(guarded: Running, browser: BrowserContext) -> Iterator[Visit]:
    """A visit of a service that needs a key."""
    visit = Visit(browser.new_page(), guarded.url)
    visit.page.goto(guarded.url)
    yield visit
    visit.leave()


def tell(visit: Visit, key: str) -> None:
    """Type a key, by keyboard alone."""
    field = visit.page.get_by_label("Key", exact=True)
    expect(field).to_be_focused()
    visit.page.keyboard.type(key)
    visit.page.keyboard.press("Enter")


@pytest.mark.parametrize("key", [PREDICTING, HASHED])
def test_the_page_requests_a_key_and_works_with_it(locked: Visit, key: str) -> None:
    asked = locked.page.get_by_role("heading", name="This service requires an API key")
    expect(asked).to_be_visible()
    expect(locked.play).to_be_hidden()
    locked.shows(key_problem="")
    assert locked.page.get_by_label("Key", exact=True).get_attribute("type") == "password"
    tell(locked, key)
    locked.begun()
    expect(asked).to_be_hidden()
    locked.tick("speed")
    locked.shows(step="step 1 of 3, 1 of 10 ms")
    assert key not in locked.page.url
    expect(locked.page.get_by_role("link", name="Routes of this service")).to_be_hidden()
    locked.page.reload()
    locked.begun()


def test_the_key_is_stored_for_its_tab_only(locked: Visit, browser: BrowserContext) -> None:
    tell(locked, PREDICTING)
    locked.begun()
    assert (browser.cookies(), locked.page.evaluate("localStorage.length")) == ([], 0)
    assert PREDICTING not in locked.page.content()
    other = browser.new_page()
    other.goto(locked.url)
    expect(other.get_by_label("Key", exact=True)).to_be_focused()
    other.close()


@pytest.mark.parametrize("wrong", [WRONG, "ключ", "two words"])
def test_a_wrong_key_is_reported_and_can_be_replaced(locked: Visit, wrong: str) -> None:
    tell(locked, wrong)
    expect(locked.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    expect(locked.page.get_by_label("Key", exact=True)).to_have_attribute("aria-invalid", "true")
    assert locked.page.evaluate("sessionStorage.length") == 0
    tell(locked, PREDICTING)
    locked.begun()


def test_the_page_requests_a_new_key_after_the_key_is_replaced(locked: Visit, key_file: Path) -> None:
    tell(locked, HASHED)
    locked.begun()
    key_file.write_text(f"{PREDICTING}0\n")
    expect(locked.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    tell(locked, f"{PREDICTING}0")
    locked.begun()
    locked.tick("speed", "hog")
    locked.shows(step="step 2 of 3, 5 of 10 ms")


def test_the_routes_are_shown_and_tried_out_with_a_key_that_no_other_site_gets(locked: Visit) -> None:
    locked.page.goto(f"{locked.url}/docs")
    asked = locked.page.get_by_role("heading", name="This service requires an API key")
    expect(asked).to_be_visible()
    for wrong in (WRONG, "a key with spaces"):
        tell(locked, wrong)
        expect(locked.page.get_by_role("alert")).to_have_text("The API key is invalid or was revoked.")
    tell(locked, PREDICTING)
    expect(asked).to_be_hidden()
    locked.predict_by_the_documentation()
