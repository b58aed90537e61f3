"""README's pictures: the output of a run becomes a single file that loads nothing."""

import re
import sys
from xml.etree import ElementTree

from tests.figures import recording, results

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_all_that_is_printed_and_loads_nothing(tmp_path):
    path = tmp_path / "run.svg"
    code = f"print('{recording.CHECKOUT}/logs', *range(40))"
    words = ["--output", str(path), "--exit-code", "0", "--", sys.executable, "-c", code]
    assert recording.main(words) == 0
    text = path.read_text()
    words = "".join(one.text for one in ElementTree.fromstring(text).iter(f"{SVG}text"))
    *_, first, rest = words.replace("\xa0", " ").split("\n")[:-1]
    assert first.startswith("logs 0 1 ") and rest.startswith("    ") and rest.endswith(" 39")
    assert "@font-face" not in text and "cdnjs" not in text


def test_readme_shows_the_rank_that_hangs_with_its_node_and_line():
    text = (recording.CHECKOUT / "docs/figures/run.svg").read_text()
    lines = [one.text for one in ElementTree.fromstring(text).iter(f"{SVG}text")]
    words = " ".join("".join(lines).replace("\xa0", " ").split())
    source = recording.PROGRAM.read_text().splitlines()
    number = 1 + next(line for line, code in enumerate(source) if "time.sleep" in code)
    assert re.search(rf"rank 2 on node2 .* all_reduce.* load_data, train\.py:{number}\b", words)


def test_the_pages_of_results_show_what_is_taken_of_their_studies():
    places = {place for name in results.SHOWN for place in results.taken(name).values()}
    files = (results.DOCS / "results").glob("*/*")
    assert {one.relative_to(results.DOCS).as_posix() for one in files} == places
    text = "".join(one.read_text() for one in (results.DOCS / "results").glob("*.md"))
    assert [one for one in places if f"({one.removeprefix('results/')})" not in text] == []
    for name in results.SHOWN:
        assert (results.CHECKOUT / f"configs/studies/{name}.yaml").is_file()
