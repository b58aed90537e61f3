"""Reports as a browser shows them: on a phone and on a desk, light and dark, without a network."""

import shutil
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest
from selenium import webdriver

from tests.train.report.folders import evaluation, make_run
from tests.train.report.studies import full_study
from train.report.data.subject import read_subject
from train.report.pages import page, sections

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium", "chromedriver")]

WIDTHS_PX, SCHEMES = (390, 1280), ("light", "dark")
SMALLEST_TYPE_PX = 10.5


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium that is started from the paths given: nothing is looked for online."""
    browser, service = shutil.which("chromium"), shutil.which("chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    with webdriver.Chrome(options, webdriver.ChromeService(service)) as found:
        found.set_script_timeout(600)
        found.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        found.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield found


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    """Of a study with much of everything, and of one run."""
    folder = tmp_path_factory.mktemp("reports")
    made = {
        "study": full_study(folder / "study"),
        "run": make_run(folder / "run", workers=4, more=[evaluation(20, accuracy=0.5)]),
    }
    for name, path in made.items():
        subject = read_subject([path])
        made[name] = folder / f"{name}.html"
        made[name].write_text(page.html(subject, sections.build(subject)), encoding="utf-8")
    return made


VIEWS = list(product(("study", "run"), WIDTHS_PX, SCHEMES))


@pytest.fixture(params=VIEWS, ids=lambda view: "-".join(map(str, view)), scope="module")
def view(request, chromium, reports):
    """The browser, with one report open at one width in one scheme, all of it unfolded."""
    name, width, scheme = request.param
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chromium.get(reports[name].as_uri())
    chromium.execute_script("for (const one of document.querySelectorAll('details')) one.open = 1")
    return chromium


COLUMNS = """
// Neither the page nor a box in it is narrower than its content, but for what is to scroll.
return [...document.querySelectorAll("html, body, body :not(.wide, pre, svg, svg *)")]
  .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.tagName}, ${box.scrollWidth} px wide: ${box.innerText.slice(0, 60)}`);
"""


def test_page_has_no_overflowing_text_or_sideways_scrolling(view):
    assert view.execute_script(COLUMNS) == []


FIGURES = """
// Labels of figures: none on another, none cut off by the figure, none too small to read.
const found = [];
let figures = 0, labels = 0;
for (const svg of document.querySelectorAll("figure svg")) {
  if (getComputedStyle(svg).display === "none") continue;
  figures += 1;
  const box = svg.getBoundingClientRect(), type = 9.5 * box.width / svg.viewBox.baseVal.width;
  if (type < arguments[0]) found.push(`type of ${type.toFixed(1)} px`);
  const texts = [...svg.querySelectorAll("g[id^=text_]")].filter((g) => g.querySelector("use"));
  // matplotlib draws outlines, and writes the text beside them as a comment
  const comment = (g) => [...g.childNodes].find((one) => one.nodeType === Node.COMMENT_NODE);
  const named = texts.map((g) => ({ name: comment(g)?.data, at: g.getBoundingClientRect() }));
  labels += named.length;
  named.forEach(({ name, at }, number) => {
    if (Math.min(at.left - box.left, box.right - at.right, at.top - box.top,
                 box.bottom - at.bottom) < -0.5) found.push(`cut off: ${name}`);
    for (const { name: other, at: b } of named.slice(number + 1))
      if (Math.min(b.right - at.left, at.right - b.left, b.bottom - at.top,
                   at.bottom - b.top) > 0.5) found.push(`${name} lies on ${other}`);
  });
}
return [figures, labels, found];
"""


def test_labels_of_figures_can_be_read(view, request):
    figures, labels, found = view.execute_script(FIGURES, SMALLEST_TYPE_PX)
    assert found == []
    name = request.node.callspec.params["view"][0]
    assert figures >= {"study": 7, "run": 1}[name] and labels > 5 * figures


AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then((found) =>
  done(found.violations.map((one) => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200),
    one.nodes[0].failureSummary])));
"""


# Contrast and structure do not depend on the width: each scheme at one of the two.
DIAGONAL = [view for view in VIEWS if view[1:] in {(390, "dark"), (1280, "light")}]


@pytest.mark.parametrize("view", DIAGONAL, indirect=True, ids=lambda v: "-".join(map(str, v)))
def test_axe_finds_nothing_in_contrast_and_structure(view):
    (script,) = files("axe_playwright_python").glob("axe*.js")
    # Behind the shadows that say that a table scrolls, axe would not look at contrast.
    style = "document.head.append(Object.assign(document.createElement('style'), {textContent:"
    view.execute_script(style + " '.wide {background: none !important}'}))")
    view.execute_script(script.read_text(encoding="utf-8"))
    assert view.execute_async_script(AXE) == []


def test_a_report_asks_for_nothing(view):
    script = "return performance.getEntriesByType('resource').map((one) => one.name)"
    assert view.execute_script(script) == []
    assert view.get_log("browser") == []
