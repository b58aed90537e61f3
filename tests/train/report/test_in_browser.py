"""Reports as a browser shows them: on a phone and on a desk, light and dark, without a network.

They need Debian's `chromium` and `chromium-driver`. Without these they are skipped, unless
REQUIRE_ALL says that they must run, as `.ci/run` does.
"""

import json
import shutil
from importlib.resources import files
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.required import missing
from tests.train.report.folders import cell, evaluation, make_run, make_study, traffic
from tests.train.report.test_report import full_study
from train.report.data.subject import read_subject
from train.report.pages import page, sections

pytestmark = pytest.mark.slow

WIDTHS_PX, SCHEMES = (390, 1280), ("light", "dark")
SMALLEST_TYPE_PX = 10.5
LONG = "a-folder-with-a-name-as-long-as-some-are"


def driver():
    """A headless Chromium that is started from the paths given: nothing is looked for online."""
    browser, service = shutil.which("chromium"), shutil.which("chromedriver")
    packages = [find_spec(name) for name in ("selenium", "axe_playwright_python")]
    if not (browser and service and all(packages)):
        missing("no browser: apt-get install chromium chromium-driver; pip install -e '.[test]'")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(service))


@pytest.fixture(scope="module")
def chromium():
    found = driver()
    try:
        found.set_script_timeout(600)
        found.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        found.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    """Of a study with every kind of section, one with much of everything, and of one run."""
    folder = tmp_path_factory.mktemp("reports")
    made = {
        "study": full_study(folder / "study"),
        "wide": wide_study(folder / "wide"),
        "run": make_run(folder / "run", workers=4, more=[evaluation(20, accuracy=0.5)]),
    }
    for name, path in made.items():
        subject = read_subject([path])
        made[name] = folder / f"{name}.html"
        made[name].write_text(page.html(subject, sections.build(subject)), encoding="utf-8")
    return made


def wide_study(path: Path) -> Path:
    """Long names, two precisions, many workers, large and small numbers, losses far apart."""
    kinds = list(product((1, 4, 5), ("fp32", "bf16")))
    cells = []
    for number, (workers, precision) in enumerate(kinds):
        name, own = f"{number}-{LONG}", {"precision": precision, "bucket_mb": 25 + number}
        settings = own | {"sync": "ddp", "network": "10.0.0.0/24"}
        cells.append(cell(name, nodes=workers, settings=settings))
        more = [evaluation(n, accuracy=1 - 1e-9 * n, eval_loss=1e-9 * n) for n in (10, 20)]
        more += [traffic(epoch) for epoch in (1, 2)]
        folder = path / "runs" / name
        make_run(folder, workers=workers, more=more, step_s=3.7 / workers, **own)
    make_study(path, cells)
    cost = {"predicted_s": 1.1e-5, "measured_s": 1.0, "mode": "gather_scatter", "folders": []}
    prediction = {"seconds_per_iteration": [{"run": LONG, "workers": n, **cost} for n in (2, 4)]}
    (path / "prediction.json").write_text(json.dumps(prediction))
    return path


VIEWS = list(product(("study", "wide", "run"), WIDTHS_PX, SCHEMES))


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
// The page does not scroll sideways, and no text leaves its box, or that of what scrolls around it.
const wide = document.documentElement, found = [];
if (wide.scrollWidth > wide.clientWidth) found.push(`the page is ${wide.scrollWidth} px wide`);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const parent = node.parentElement;
  if (!node.data.trim() || parent.closest("svg, style, script")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const text = range.getBoundingClientRect(), scrolls = parent.closest(".wide, pre");
  let box = parent;
  while (getComputedStyle(box).display === "inline") box = box.parentElement;
  const around = box.getBoundingClientRect();
  const inside = scrolls && scrolls === box ? box.scrollWidth + around.left : around.right;
  if (text.right > inside + 1 || text.left < around.left - 1)
    found.push(`${box.tagName}: ${node.data.trim().slice(0, 60)}`);
  if (!scrolls && text.right > wide.clientWidth) found.push(`cut: ${node.data.slice(0, 60)}`);
}
return found;
"""


def test_no_text_leaves_its_box_and_the_page_does_not_scroll_sideways(view):
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
    assert figures >= {"study": 7, "wide": 6, "run": 1}[name] and labels > 5 * figures


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
