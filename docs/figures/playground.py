"""Pictures of the playground, and the page itself: `python docs/figures/playground.py [RUN]`.

With a run its page is exported first; without, the page of the docs gets today's engine and script
around the same network. The pictures need chromium, chromium-driver and selenium.
"""

import base64
import shutil
import sys
import tempfile
from pathlib import Path

from binep.deploy import web_page
from binep.deploy.export import export
from binep.files import write_whole
from binep.training.runs import open_run

PAGE = Path(__file__).parents[1] / "playground" / "mnist.html"
PICTURE = Path(__file__).parent / "playground.png"
# A digit that half of its noise makes hard to read, nudged towards what it is.
SHOWN = """
choose(playground, 18);
for (const [id, value] of [["tau", -64], ["corrupt", 35]]) {
  element(id).value = value;
  element(id).dispatchEvent(new Event("input"));
}
element("nudge3").click();
playground.stop();
playground.go(playground.trace.length - 1);
"""


def refill() -> None:
    """The page of the docs with today's engine and script."""
    contents = web_page.contents_of(PAGE.read_text("utf-8"))
    engine = Path(web_page.__file__).parent / "web" / "engine.wasm"
    contents["wasm"] = base64.b64encode(engine.read_bytes()).decode()
    write_whole(PAGE, web_page.fill(contents))


def take_picture() -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1300,1000"):
        options.add_argument(word)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    browser.get(PAGE.as_uri())
    browser.execute_script(SHOWN)
    browser.set_window_size(1300, 1480)
    browser.execute_script("playground.paintAll()")
    browser.save_screenshot(str(PICTURE))
    browser.quit()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as folder:
            (page,) = export(open_run(sys.argv[1]), Path(folder), "web")
            PAGE.parent.mkdir(exist_ok=True)
            write_whole(PAGE, page.read_bytes())
    else:
        refill()
    take_picture()
