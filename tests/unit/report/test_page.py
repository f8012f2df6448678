"""The page of a report in a real browser: curves, legend, axes, and a silent console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import ADVICE, CHROMIUM, Browser
from support.run_folders import write_run

from fedsys.report.main import main

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=ADVICE)

CURVES = 'document.querySelectorAll("#chart polyline.curve")'
TICKS = '[...document.querySelectorAll("#chart .{}-tick")].map((t) => t.textContent)'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    gaps = {"gap": [1.0, 1e-3, 1e-6], "drift": [0.0, 0.1, 0.2]}
    less = {"gap": [1.0, 1e-2, 1e-4], "drift": [0.0, 0.1, 0.3]}
    split = ([0, 1, 1], [0, 0, 1])
    write_run(folder / "0", "A", 0, gaps, client_split=split, waits=(1.0, 3.0))
    write_run(
        folder / "1", "A", 1, {name: [v / 2 for v in values] for name, values in gaps.items()}
    )
    write_run(folder / "2", "B", 0, less, lr=0.3)
    (folder / "3").mkdir()
    (folder / "3" / "config.yaml").write_text("algorithm: {lr: 1}\n")
    assert main([str(folder), "--page-only"]) == 0
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(started: Browser, page: Path) -> Iterator[Browser]:
    started.open(page)
    yield started
    assert started.console == []
    assert started.requests == [page.absolute().as_uri()], "nothing else is fetched"


def choose(browser: Browser, control: str, value: str) -> None:
    browser(
        f"(() => {{ const c = document.getElementById('{control}'); c.value = '{value}'; "
        "c.dispatchEvent(new Event('change')); })()"
    )


def test_the_page_draws_toggles_and_switches_its_axes_without_an_error(browser: Browser) -> None:
    # Every curve is drawn inside the frame, and the best is marked.
    assert browser(f"{CURVES}.length") == 2
    assert browser('document.querySelectorAll("#chart .curve.best").length') == 1
    assert browser('document.querySelectorAll("#chart .band").length') == 1, "of the two seeds of a"
    assert browser(
        f"[...{CURVES}].every((c) => c.getAttribute('points').split(' ').every((p) => {{ "
        "const [x, y] = p.split(',').map(Number); "
        "return x >= 78 && x <= 885 && y >= 12 && y <= 385; }))"
    )
    # The legend takes a curve away and brings it back.
    assert browser(
        '[...document.querySelectorAll("#legend button")].map((b) => b.textContent)'
    ) == [
        "a (best)",
        "b",
    ]
    browser('document.querySelectorAll("#legend button")[0].click()')
    assert browser(f"[...{CURVES}].map((c) => c.dataset.index)") == ["1"]
    pressed = 'document.querySelectorAll("#legend button")[0].getAttribute("aria-pressed")'
    assert browser(pressed) == "false"
    browser('document.querySelectorAll("#legend button")[0].click()')
    assert browser(f"{CURVES}.length") == 2
    browser('document.getElementById("none").click()')
    assert browser(f"{CURVES}.length") == 0
    browser('document.getElementById("all").click()')
    assert browser(f"{CURVES}.length") == 2
    # Six decades are seen on a logarithmic axis, and not on a linear one.
    assert browser('document.getElementById("log-y").checked') is True
    assert "1e-4" in browser(TICKS.format("y"))
    browser('document.getElementById("log-y").click()')
    assert browser(TICKS.format("y"))[:2] == ["0", "0.2"]
    # The other axes have other numbers and another name; zero has no place on a logarithmic one.
    assert browser(TICKS.format("x"))[-1] == "10"
    choose(browser, "axis", "bytes_up")
    assert browser(TICKS.format("x"))[-1] == "1000"
    assert browser('document.getElementById("x-label").textContent') == "bytes sent per client"
    browser('document.getElementById("log-x").click()')
    assert browser(f"{CURVES}[0].getAttribute('points').split(' ').length") == 2
    # Another metric, with the scale that suits it.
    choose(browser, "metric", "drift")
    assert browser('document.getElementById("log-y").checked') is False
    assert browser(f"{CURVES}.length") == 2


def test_the_page_shows_numbers_differences_partitions_waits_and_warnings(browser: Browser) -> None:
    row = '[...document.querySelectorAll("#finals tbody tr")[0].children].map((c) => c.textContent)'
    assert browser(row)[:2] == ["a", "7.5e-07 ± 3.5e-07"]
    cells = '[...document.querySelectorAll("#finals td.best")].map((c) => c.textContent)'
    assert browser(cells)[0] == "7.5e-07 ± 3.5e-07"  # the cell that is best, not its row
    assert "a" not in browser(cells)
    assert browser('document.getElementById("y-label").textContent') == browser(
        'document.getElementById("metric").value'
    )
    assert "algorithm.lr" in browser('document.getElementById("differences").textContent')
    counts = '[...document.querySelectorAll("#partitions td")].map((c) => c.textContent)'
    assert browser(counts) == ["1", "0", "1", "1"]
    assert "rank 1: 3 s" in browser('document.getElementById("waits").textContent')
    (warning,) = browser('[...document.querySelectorAll("#warnings li")].map((w) => w.textContent)')
    assert "no metrics" in warning
    browser(
        "document.getElementById('chart').dispatchEvent(new MouseEvent('mousemove', "
        "{clientX: 2000, clientY: 100}))"
    )
    assert "a: 7.5e-7 (5e-7 to 1e-6, 2 seeds) at 10" in browser(
        'document.getElementById("readout").textContent'
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_narrow_and_wide_windows_in_light_and_dark(
    started: Browser, page: Path, width: int, theme: str
) -> None:
    started.emulate(width, theme)
    started.open(page)
    assert started("document.documentElement.scrollWidth <= window.innerWidth")
    scale = "(c => c.getBoundingClientRect().width / c.viewBox.baseVal.width)"
    assert started(f"{scale}(document.getElementById('chart'))") > 0.95, "12 px text stays legible"
    assert started(f"{CURVES}.length") == 2
    style = "getComputedStyle(document.body)"
    paper, text = (started(f"{style}.{name}") for name in ("backgroundColor", "color"))
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, text)]
    assert (brightness[0] > brightness[1]) is (theme == "light")
    assert abs(brightness[0] - brightness[1]) > 400
