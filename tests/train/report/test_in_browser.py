"""A report in a browser: at phone and desktop width, dark and light, without a network."""

import shutil
from importlib.resources import files

import pytest
from selenium import webdriver

from tests.train.report.studies import full_study
from train.report.data.subject import read_subject
from train.report.pages import page, sections

SMALLEST_TYPE_PX = 10.5


@pytest.fixture
def chromium():
    """Start a headless Chromium from the installed paths, so nothing is looked for online."""
    browser, service = shutil.which("chromium"), shutil.which("chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    with webdriver.Chrome(options, webdriver.ChromeService(service)) as driver:
        driver.set_script_timeout(600)
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver


COLUMNS = """
// Neither the page nor a box in it is narrower than its content, but for what is to scroll.
return [...document.querySelectorAll("html, body, body :not(.wide, pre, svg, svg *)")]
  .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.tagName}, ${box.scrollWidth} px wide: ${box.innerText.slice(0, 60)}`);
"""


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

AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then((found) =>
  done(found.violations.map((one) => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200),
    one.nodes[0].failureSummary])));
"""


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_report_can_be_read_on_a_phone_and_on_a_desk(chromium, tmp_path):
    subject = read_subject([full_study(tmp_path / "study")])
    report = tmp_path / "report.html"
    report.write_text(page.html(subject, sections.build(subject)), encoding="utf-8")
    (axe,) = files("axe_playwright_python").glob("axe*.js")
    for width_px, scheme in ((390, "dark"), (1280, "light")):
        metrics = {"width": width_px, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        chromium.get(report.as_uri())
        chromium.execute_script("document.querySelectorAll('details').forEach((e) => e.open = 1)")
        assert chromium.execute_script(COLUMNS) == []
        figures, labels, unreadable = chromium.execute_script(FIGURES, SMALLEST_TYPE_PX)
        assert unreadable == [] and figures >= 7 and labels > 5 * figures
        script = "return performance.getEntriesByType('resource').map((one) => one.name)"
        assert chromium.execute_script(script) == []  # the page loads no resources
        assert chromium.get_log("browser") == []
        # axe would skip the contrast check behind the shadows which show that a table scrolls.
        style = "document.head.append(Object.assign(document.createElement('style'), {textContent:"
        chromium.execute_script(style + " '.wide {background: none !important}'}))")
        chromium.execute_script(axe.read_text(encoding="utf-8"))
        assert chromium.execute_async_script(AXE) == []
