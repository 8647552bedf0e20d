"""The picture of a playground: `python docs/figures/playground.py PAGE [PICTURE]`.

PAGE is one of MNIST, as `mkdocs build` or `binep export --format web` makes it. Needs chromium,
chromium-driver and selenium.
"""

import shutil
import sys
from pathlib import Path

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


def take_picture(page: Path, picture: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1300,1000"):
        options.add_argument(word)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    browser.get(page.resolve().as_uri())
    browser.execute_script(SHOWN)
    browser.set_window_size(1300, 1480)
    browser.execute_script("playground.paintAll()")
    browser.save_screenshot(str(picture))
    browser.quit()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURE)
