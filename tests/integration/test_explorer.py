"""Every page of the explorer in a real browser, over the log of a real coordinator."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from prime_protocol.constants import TILE_HASHES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.log.tiles import EntryBundle, Tile
from prime_protocol.wire.ids import friendly_name
from support.processes.coordinator import RUN
from support.processes.explorer import CHROMIUM, DRIVER, MARKUP, Stage, open_browser, open_stage, set_screen, wait_for

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver: apt-get install chromium-driver"
)
AXE = Path(__file__).parents[1] / "axe/node_modules/axe-core/axe.min.js"
PAGE_BYTES_MAX = 100_000
STATIC_BYTES_MAX = 150_000
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("stage")) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser(stage: Stage) -> Iterator[webdriver.Chrome]:
    opened = open_browser()
    opened.get(stage.url)
    wait_for(opened, "return document.querySelector('h1').textContent === 'testnet'", 30)
    opened.get_log("browser")  # until the index is made, pages say so
    yield opened
    opened.quit()


def get(stage: Stage, path: str) -> tuple[int, Any, bytes]:
    """Status, headers and body."""
    try:
        with urllib.request.urlopen(stage.url + path) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def problems(browser: webdriver.Chrome) -> list[str]:
    """What the browser complained of, but for pages that are missing on purpose."""
    return [each["message"] for each in browser.get_log("browser") if "404 (Not Found)" not in each["message"]]


def text_of(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.TAG_NAME, "main").text


# --- What every page keeps --------------------------------------------------------------------------------------------


def test_every_page_shows_in_phone_and_desk_width_asks_nobody_else_and_runs_no_markup(
    stage: Stage, browser: webdriver.Chrome
) -> None:
    browser.get_log("performance")
    for name, path in stage.paths().items():
        for width in (DESK, PHONE) if name in ("overview", "run", "rejected", "entry") else (PHONE,):
            set_screen(browser, width)
            browser.get(stage.url + path)
            assert browser.find_element(By.TAG_NAME, "h1").text, name
            assert browser.execute_script("return window.hacked") is None, f"{name} ran somebody's markup"
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide on a screen of {width}"
        assert problems(browser) == [], name
    events = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert len(asked) > len(stage.paths())
    assert [url for url in asked if not url.startswith((stage.url, "data:"))] == []


def test_pages_are_small_and_carry_strict_headers_and_no_cookie(stage: Stage) -> None:
    for name, path in stage.paths().items():
        status, headers, body = get(stage, path)
        assert status == (404 if name == "missing" else 200)
        assert len(body) < PAGE_BYTES_MAX, name
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["Set-Cookie"] is None
        assert headers["X-Content-Type-Options"] == "nosniff"
        text = body.decode()
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        assert all("src=" in tag for tag in text.split("<script")[1:]), f"{name} has a script of its own"
        assert 'property="og:title"' in text
    folder = Path(__file__).parents[2] / "coordinator/prime_explorer/static"
    loaded = [path.stat().st_size for path in folder.iterdir() if path.suffix in (".js", ".css")]
    assert sum(loaded) < STATIC_BYTES_MAX


def test_nothing_can_be_changed_through_a_page(stage: Stage) -> None:
    for path in ("/", "/nodes", f"/runs/{RUN}", "/log/3", "/live", "/contributions.csv"):
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(stage.url + path, method=method, data=b"x")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            assert caught.value.code == 405
            caught.value.close()


def test_axe_finds_nothing_serious(stage: Stage, browser: webdriver.Chrome) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci --prefix tests/axe")
    rules, found = AXE.read_text(), {}
    run = "axe.run({resultTypes: ['violations']}).then((found) => arguments[arguments.length - 1](found.violations))"
    likes = ("cheater", "validator", "submission", "appeal")
    for name, path in stage.paths().items():
        for width, dark in ((DESK, False), (PHONE, True)):
            if name in likes or (dark and name not in ("overview", "run", "rejected")):
                continue  # the same parts, or the same colours, as another page
            set_screen(browser, width, dark=dark)
            browser.get(stage.url + path)
            browser.execute_script(rules)
            serious = [each for each in browser.execute_async_script(run) if each["impact"] in ("serious", "critical")]
            if serious:
                found[name, width] = [(each["id"], each["nodes"][0]["html"][:200]) for each in serious]
    assert found == {}


def test_pages_can_be_read_without_javascript(stage: Stage) -> None:
    plain = open_browser(is_scripted=False)
    try:
        plain.get(f"{stage.url}/runs/{RUN}")
        assert "Verified rollouts" in text_of(plain)
        assert plain.find_elements(By.CSS_SELECTOR, "svg.timeline rect.bar.generate")
        plain.get(f"{stage.url}/submissions")
        assert str(stage.names["good"])[:8] in text_of(plain)
        assert " UTC" in plain.find_element(By.TAG_NAME, "time").text
        plain.get(f"{stage.url}/log/7")
        assert "prime-coordinator log verify" in text_of(plain)
        plain.find_element(By.CSS_SELECTOR, ".search input").send_keys("7", Keys.ENTER)
        assert plain.current_url.endswith("/log/7"), "the one thing that was found is shown at once"
    finally:
        plain.quit()


# --- Proofs -----------------------------------------------------------------------------------------------------------


def proof_state(browser: webdriver.Chrome) -> tuple[str, str]:
    """How the check in the page ended, and what it says."""
    script = "const {state} = document.querySelector('.proof').dataset; return state !== 'working' && state"
    state = wait_for(browser, script)
    return state, browser.find_element(By.CSS_SELECTOR, ".proof .verdict").text


def test_the_browser_proves_that_entries_are_in_the_signed_log(stage: Stage, browser: webdriver.Chrome) -> None:
    size = json.loads(get(stage, "/api/v1/log/head")[2])["size"]
    for index in (0, 1, size // 2, size - 1):
        browser.get(f"{stage.url}/log/{index}")
        state, text = proof_state(browser)
        assert state == "good", browser.find_element(By.CSS_SELECTOR, ".proof").text
        assert f"entry {index}" in text.lower()
        checks = browser.find_element(By.CSS_SELECTOR, ".checks").text
        assert "is signed by prime-swarm/testnet" in checks


@contextmanager
def tampered(path: Path, place: int) -> Iterator[None]:
    good = path.read_bytes()
    path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    try:
        yield
    finally:
        path.write_bytes(good)


def test_a_tampered_tile_or_entry_fails_visibly(stage: Stage, browser: webdriver.Chrome) -> None:
    size = json.loads(get(stage, "/api/v1/log/head")[2])["size"]
    assert size < TILE_HASHES, "the tests name the one partial tile"
    tile, bundle = stage.mirror / Tile(0, 0, size).path, stage.mirror / EntryBundle(0, size).path
    for path, place in ((tile, 3 * 32), (tile, 0), (bundle, 40)):
        with tampered(path, place):
            browser.get(f"{stage.url}/log/0")
            state, text = proof_state(browser)
            assert state == "bad"
            assert text.startswith("NO.")
            panel = browser.find_element(By.CSS_SELECTOR, ".proof")
            assert "✗" in panel.text
            assert panel.value_of_css_property("border-top-width") == "3px", "and it looks like it"
        browser.get(f"{stage.url}/log/0")
        assert proof_state(browser)[0] == "good"
    browser.get_log("browser")


def test_the_browser_proves_that_two_heads_tell_one_history(stage: Stage, browser: webdriver.Chrome) -> None:
    size = json.loads(get(stage, "/api/v1/log/head")[2])["size"]
    for old, new in ((1, ""), (size // 2, size - 3), (size, ""), (0, size)):
        browser.get(f"{stage.url}/log/heads?old={old}&new={new}")
        assert proof_state(browser)[0] == "good", (old, new, browser.find_element(By.CSS_SELECTOR, ".proof").text)
    browser.get(f"{stage.url}/log/heads")
    form = browser.find_element(By.CSS_SELECTOR, ".proof form")
    form.find_element(By.NAME, "old").send_keys("5")
    form.find_element(By.NAME, "old_root").send_keys("A" * 43 + "=")
    form.find_element(By.TAG_NAME, "button").click()
    state, text = proof_state(browser)
    wait_for(browser, "return document.querySelector('.proof').dataset.state === 'bad'")
    assert "another history" in browser.find_element(By.CSS_SELECTOR, ".proof").text, (state, text)


# --- What pages say ---------------------------------------------------------------------------------------------------


def test_markup_that_people_wrote_stays_text(stage: Stage, browser: webdriver.Chrome) -> None:
    paths = stage.paths()
    places = {
        paths["cheater"]: "dd.text",
        paths["rejected"]: ".rollout pre",
        paths["slash"]: ".history .text",
        paths["appeal"]: "q.text",
        f"/search?q={urllib.parse.quote(MARKUP)}": "q.text",
    }
    for path, selector in places.items():
        browser.get(stage.url + path)
        shown = [each.text for each in browser.find_elements(By.CSS_SELECTOR, selector)]
        assert any(MARKUP in text for text in shown), (path, shown)
        assert browser.execute_script("return window.hacked") is None
    assert problems(browser) == []


def test_the_story_of_a_slash_names_judges_evidence_and_how_to_run_it_again(
    stage: Stage, browser: webdriver.Chrome
) -> None:
    browser.get(stage.url + stage.paths()["slash"])
    text = text_of(browser)
    kinds = ["Submitted", "AuditDrawn", "VerdictGiven", "Settled", "SlashProposed", "SlashExecuted"]
    history = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".history li a:first-child")]
    assert [kind for kind in kinds if kind not in history] == []
    assert f"prime-node audit {stage.names['cheat']}" in text
    browser.get(stage.url + stage.paths()["appeal"])
    assert "decides the appeal" in text_of(browser)
    assert "overturned" in text_of(browser)


def test_a_rejected_submission_is_drawn_against_its_thresholds(stage: Stage, browser: webdriver.Chrome) -> None:
    browser.get(stage.url + stage.paths()["rejected"])
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg.strips")) == 2
    over = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "svg.strips .point.over")]
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.point.over title')].map((e) => e.textContent)"
    )
    assert over
    assert any("allowed is 1" in title for title in titles)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".rollout")) == 2


def test_a_checkpoint_leads_back_to_the_nodes_it_was_trained_on(stage: Stage, browser: webdriver.Chrome) -> None:
    browser.get(stage.url + stage.paths()["checkpoint"])
    assert friendly_name(stage.node("worker")) in browser.find_element(By.CSS_SELECTOR, "svg.lineage").text
    assert "keyframe, 4.1 kB of 4.1 kB (100 %)" in text_of(browser)
    digest = json.loads(get(stage, "/api/v1" + stage.paths()["checkpoint"])[2])["step"]["manifest"]
    assert get(stage, f"/objects/{digest}")[0] == 200


def test_held_out_rewards_are_a_curve_beside_what_validators_found(stage: Stage, browser: webdriver.Chrome) -> None:
    steps = json.loads(get(stage, f"/api/v1/runs/{RUN}")[2])["charted"]
    assert [(step["reward"], step["held_out"]) for step in steps] == [(0.5, 0.25), (None, 0.5)]
    numbers = json.loads(get(stage, "/api/v1" + stage.paths()["checkpoint"])[2])["metrics"]
    assert numbers["held_out"] == 0.5
    browser.get(f"{stage.url}/runs/{RUN}")
    assert "On held-out problems: 0.25 with step 0, 0.5 with step 1." in text_of(browser)
    wait_for(browser, "return document.querySelectorAll('#reward .u-series').length === 3")


def test_the_network_is_drawn_by_depth(stage: Stage, browser: webdriver.Chrome) -> None:
    browser.get(f"{stage.url}/network")
    peers = [peer.get_attribute("class") for peer in browser.find_elements(By.CSS_SELECTOR, "svg.network .peer")]
    assert peers == ["peer ahead", "peer"]
    assert "depth 1" in browser.find_element(By.CSS_SELECTOR, "svg.network").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg.network .edge")) == 1
    browser.get(f"{stage.url}/nodes/{stage.parties['worker'].key.node}")
    assert "3.0 GB since it started, by its own count" in text_of(browser)


def test_charts_are_drawn_from_the_tables_beside_them(stage: Stage, browser: webdriver.Chrome) -> None:
    set_screen(browser, DESK)
    browser.get(f"{stage.url}/runs/{RUN}")
    wait_for(browser, "return document.querySelectorAll('figure[data-chart] canvas').length >= 4")
    is_open = "return document.querySelector('details#series').open"
    assert not browser.execute_script(is_open)
    browser.find_element(By.CSS_SELECTOR, "#series summary").click()
    assert browser.execute_script(is_open)
    drawn = browser.execute_script("return document.querySelector('#tokens canvas').toDataURL().length")
    assert drawn > 3_000, "there is more on it than an empty grid"
    assert "by the trainer's word" in text_of(browser)


def test_nodes_are_found_while_typing(stage: Stage, browser: webdriver.Chrome) -> None:
    set_screen(browser, DESK)
    word = friendly_name(stage.node("wronged")).split("-")[2]
    browser.get(f"{stage.url}/nodes")
    before = len(browser.find_elements(By.CSS_SELECTOR, "#found tbody tr"))
    assert before == 7
    browser.find_element(By.CSS_SELECTOR, ".filters input").send_keys(word)
    wait_for(browser, "return document.querySelectorAll('#found tbody tr').length < 7")
    assert friendly_name(stage.node("wronged")) in browser.find_element(By.ID, "found").text
    for query in (str(stage.node("cheat"))[:10], str(stage.names["cheat"])[2:12], "run-1"):
        browser.get(f"{stage.url}/search?q={query}")
        assert "/search" not in browser.current_url, query


def test_an_open_page_hears_of_news_without_being_asked(stage: Stage, browser: webdriver.Chrome) -> None:
    browser.get(f"{stage.url}/")
    script = "return document.querySelector('.tile dd').firstChild.textContent"
    before = int(browser.execute_script(script))
    entry = e.NodeRegistered(roles=(Role.RELAY,), hardware="a newcomer")
    stage.loop.do(stage.parties["sponsor"].write(entry))
    wait_for(browser, f"{script} === '{before + 1}'", 20)
    assert problems(browser) == []


def test_a_reader_can_choose_dark_and_it_stays(stage: Stage, browser: webdriver.Chrome) -> None:
    set_screen(browser, DESK)
    browser.get(f"{stage.url}/about")
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    light = browser.execute_script(paper)
    browser.find_element(By.CSS_SELECTOR, "[data-theme-toggle]").click()
    dark = browser.execute_script(paper)
    assert dark != light
    browser.get(f"{stage.url}/nodes")
    assert browser.execute_script(paper) == dark
    browser.find_element(By.CSS_SELECTOR, "[data-theme-toggle]").click()
    browser.execute_script("localStorage.clear()")


# --- One number, one definition ---------------------------------------------------------------------------------------


def test_pages_and_log_verify_say_the_same_of_every_node(stage: Stage, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prime_coordinator.cli.main", "log", "verify", str(stage.mirror), "--json"]
    verified = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["nodes"]
    assert len(verified) >= 7
    for address, books in verified.items():
        page = json.loads(get(stage, f"/api/v1/nodes/{address}")[2])
        row = page["summary"]
        settled = books["settled"]
        assert (row["accepted"], row["invalid"], row["fraudulent"]) == (
            settled["accept"],
            settled["invalid"],
            settled["fraudulent"],
        )
        for name in ("units", "earned_nano", "stake_nano", "faults", "owner", "status"):
            assert row[name] == books[name], (address, name)
        assert page["owner_balance_nano"] == books["balance_nano"]
        assert sum(each["amount_nano"] for each in page["payouts"]) == books["earned_nano"]
        assert sum(each["units"] for each in page["contributions"]) == books["units"]
    assert sum(books["units"] for books in verified.values()) > 0
    csv = get(stage, "/contributions.csv")[2].decode().splitlines()
    listed = {line.split(",")[0]: line.split(",") for line in csv[1:]}
    assert listed.keys() == verified.keys()
    assert all(int(listed[address][9]) == books["units"] for address, books in verified.items())
