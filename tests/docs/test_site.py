"""The docs site: built strictly, tutorials run, links hold, the search finds what it should."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from binep.deploy import web_page

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None and not os.environ.get("CI"),
        reason="needs the extra docs: pip install 'binep[docs]'",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_tutorial_has_run(site: Path):
    for tutorial in TUTORIALS:
        page = (site / "tutorials" / tutorial.stem / "index.html").read_text("utf-8")
        assert "data:image/png;base64" in page, tutorial.name
        assert "%% [markdown]" not in page and "&lt;matplotlib" not in page, tutorial.name


def test_the_playground_has_learnt_and_its_page_says_so(site: Path):
    page = (site / "playground" / "live.html").read_text("utf-8")
    facts = json.loads(web_page.contents_of(page)["facts"])
    assert page == web_page.fill(web_page.contents_of(page)) and len(page) < 2**20
    assert facts["origin"]["test_error"]["average"] < 10
    text = (site / "playground" / "index.html").read_text("utf-8")
    assert f"{facts['origin']['test_error']['average']:.2f} % test error" in text


def test_links_inside_the_site_hold(site: Path):
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    pages.pop(site / "404.html")  # its links are absolute
    wrong = []
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            place, anchor = urldefrag(unquote(link))
            if re.match(r"[a-z]+:", place):
                continue
            target = (page.parent / place).resolve() if place else page
            target = target / "index.html" if target.is_dir() else target
            found = target.exists() and (
                not anchor or target not in pages or f'id="{anchor}"' in pages[target]
            )
            if not found and not anchor.startswith("__"):
                wrong.append((str(page.relative_to(site)), link))
    assert not wrong


def test_no_page_asks_another_host_for_anything(site: Path):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not loaded, page


def test_the_search_finds_flip(site: Path):
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {entry["location"].split("#")[0] for entry in index["docs"] if "flip" in entry["text"]}
    assert {"glossary/", "what-is-ep/", "tutorials/binary_weights/"} <= found
