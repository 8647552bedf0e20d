"""The page in a real browser: drawn on, relaxed, nudged and taught as a reader would, and compared.

States, weights and momenta are those of Python, bit for bit; nothing is asked of the network, and
nothing stands on the console.
"""

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from binep.core.network import Network
from binep.data import load
from binep.deploy import layout, rules, web_page
from binep.deploy.export import learning_rule, store
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner, FixedRule
from binep.training import recipe as recipes

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SELENIUM = importlib.util.find_spec("selenium") is not None

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER and SELENIUM) and not os.environ.get("CI"),
    reason="needs chromium, chromium-driver (apt) and selenium (extra dev)",
)

TAU_SCALE = 2.0**-4


def small(name: str, overrides: list[str]) -> tuple[FixedNetwork, FixedRule]:
    """A fresh network with scales that make its neurons differ from image to image."""
    recipe = recipes.load(name, overrides)
    network: Network = recipe.build_network(torch.Generator().manual_seed(1))
    with torch.no_grad():
        for coupling in network.couplings:
            coupling.scale.mul_(2)
    rule = FixedRule(learning_rule(recipe), 31)
    return FixedNetwork(store(network, recipe)), rule


CASES = {
    "dense": ("digits-1fc-wa", ["network.dense=[96]"]),
    "bits": (
        "digits-1fc-wa",
        ["network.dense=[96]", "network.dynamics=hopfield", "learning.margin=0.1"],
    ),
    "conv": ("digits-conv-wa", ["network.conv=[8]"]),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(word)
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


class Page:
    """A page that is open, as a reader and as a program see it."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, height: int = 900) -> None:
        self.browser = browser
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):  # of the page before
            browser.get_log(log)
        begin = time.perf_counter()
        browser.get(path.as_uri())
        self.wait("window.playground")
        self.seconds = time.perf_counter() - begin

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + 20
        while not self.js(f"return Boolean({condition})"):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def js(self, script: str, *words: Any) -> Any:
        return self.browser.execute_script(script, *words)

    def find(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def click(self, name: str) -> None:
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.find(name))
        self.find(name).click()

    def slide(self, name: str, value: float) -> None:
        """Move a slider as a hand does: its value, then the event."""
        self.js(
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            self.find(name),
            value,
        )

    def draw(self, points: list[tuple[float, float]]) -> None:
        """One stroke on the canvas, between -1 and 1 from its middle."""
        from selenium.webdriver import ActionChains

        canvas = self.find("draw")
        self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        side = canvas.size["width"] / 2
        pen, last = ActionChains(self.browser, duration=10), points[0]
        pen.move_to_element_with_offset(canvas, int(last[0] * side), int(last[1] * side))
        pen.click_and_hold()
        for point in points[1:]:
            pen.move_by_offset(*(int(side * (a - b)) for a, b in zip(point, last, strict=True)))
            last = point
        pen.release().perform()

    def pixels(self, shape: tuple[int, ...]) -> np.ndarray:
        found = self.js("return Array.from(playground.pixels)")
        return np.array(found, np.uint8).reshape(shape)

    def trace(self) -> list[list[float]]:
        """The states at every step that the page has kept."""
        return self.js("return playground.trace.map((kept) => Array.from(kept.states))")

    def to_the_end(self) -> None:
        """Move the slider of time to the last step."""
        self.slide("time", self.js("return playground.trace.length - 1"))

    def numbers(self, script: str) -> np.ndarray:
        return np.array(self.js(f"return Array.from({script}, Number)"), np.int64)

    def console(self) -> list[Any]:
        return self.browser.get_log("browser")

    def requests(self) -> list[str]:
        """What was asked for, but for the page itself and what stands in it."""
        events = [
            json.loads(each["message"])["message"] for each in self.browser.get_log("performance")
        ]
        sent = [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith(("file:", "data:"))]


@pytest.fixture(params=CASES)
def opened(request: Any, browser: Any, tmp_path: Path) -> tuple[Page, FixedNetwork, FixedRule]:
    """A page, and the network and the rule that stand in it."""
    whole, rule = small(*CASES[request.param])
    test = load("digits").test
    images, labels = test.images[:12].numpy(), test.labels[:12].numpy()
    (path,) = web_page.write(whole.network, tmp_path, images, labels, rule)
    return Page(browser, path), whole, rule


def expected_trace(
    whole: FixedNetwork,
    rule: FixedRule,
    image: np.ndarray,
    label: int | None,
    beta: int | None = None,
) -> list[np.ndarray]:
    """States of the free phase and, towards a class, of the nudged one, in the page's order.

    Towards a class they are those of learning, with its margin.
    """
    phase, beta = rule.rule.plan.phases[1], abs(rule.betas[1]) if beta is None else beta
    target = np.repeat(np.arange(whole.network.classes) == label, whole.network.per_class)
    margin = 0 if label is None else rule.margin
    handicap = rules.whole_handicap(margin, target * whole.one, whole.one)
    batch = whole.begin(image[None])
    states = [in_order(whole, batch.state)]

    def pull(beta: int) -> np.ndarray:
        return rules.whole_nudge(beta, target * whole.one, whole.pulled(batch.state[-1]))

    def run(steps: int, beta: int, constant: bool = False) -> None:
        nudge = pull(beta)
        for _ in range(steps):
            before = [whole.activity(layer) for layer in batch.state]
            batch.step((nudge if constant else pull(beta)) + handicap)
            states.append(in_order(whole, batch.state))
            after = [whole.activity(layer) for layer in batch.state]
            if whole.network.bits and all(map(np.array_equal, before, after)):
                break

    run(whole.network.steps, 0)
    if label is not None:
        run(phase.steps, beta, constant=phase.constant)
    return states


def in_order(whole: FixedNetwork, state: list[np.ndarray]) -> np.ndarray:
    """The states of one image as the page has them; of bits alone what hidden neurons send."""
    *hidden, top = state
    if whole.network.bits:
        hidden = [whole.activity(layer) * whole.one for layer in hidden]
    layers = [layout.neurons(layer) / whole.one for layer in (*hidden, top)]
    return np.concatenate(layers, axis=1)[0]


def check_trace(page: Page, whole: FixedNetwork, rule: FixedRule, label: int | None) -> None:
    image = page.pixels(whole.network.image_shape)
    states = expected_trace(whole, rule, image, label)
    found = page.trace()
    assert len(found) == len(states)
    for t, state in enumerate(states):
        assert np.array_equal(found[t], state), t
    if label is None:
        energy = page.js("return playground.trace[playground.rest].energy")
        rest = whole.relax(image[None])
        assert energy == whole.energy(image[None], rest)[0] / 2**40


def check_learnt(page: Page, learner: FixedLearner) -> None:
    shapes = learner.network.shapes
    for n, coupling in enumerate(learner.network.couplings):
        rows = layout.synapses(coupling, shapes[n], coupling.signs)
        words = layout.pack(rows > 0).ravel()
        assert np.array_equal(page.numbers(f"playground.engine.weights({n})"), words)
        momenta = layout.synapses(coupling, shapes[n], learner.momenta[n]).ravel()
        assert np.array_equal(page.numbers(f"playground.engine.momenta({n})"), momenta)
        biases = page.numbers(f"playground.engine.biases({n})")
        assert np.array_equal(biases, learner.fixed.biases[n])
    assert page.js("return playground.engine.flips") == learner.flips


def scaled(rule: FixedRule) -> FixedRule:
    """The rule with tau where the test moves the slider to."""

    class Scaled(FixedRule):
        @property
        def flip_above(self) -> list[int]:
            return [int(np.floor(tau * TAU_SCALE + 0.5)) for tau in super().flip_above]

    return Scaled(rule.rule, rule.momentum_bits, rule.seed)


SEVEN = [(-0.5, -0.6), (0.0, -0.62), (0.5, -0.6), (0.2, 0.0), (0.0, 0.7)]


def test_a_reader_draws_nudges_and_trains_and_python_does_the_same(opened: Any):
    page, whole, rule = opened
    fresh = FixedNetwork(whole.network)  # learners change theirs
    assert page.seconds < 2
    check_trace(page, whole, rule, None)

    page.draw(SEVEN)
    drawn = page.pixels(whole.network.image_shape)
    assert 4 < (drawn > 100).sum() < drawn.size / 2
    check_trace(page, whole, rule, None)
    page.to_the_end()
    predicted = int(whole.predict(drawn[None])[0])
    assert page.find("reads").text == str(predicted)

    page.click("nudge7")
    check_trace(page, whole, rule, 7)
    page.to_the_end()
    assert "towards 7" in page.find("phase").text

    page.slide("tau", 10 * np.log2(TAU_SCALE))
    learner = FixedLearner(whole, scaled(rule))
    for _ in range(2):  # what would flip is told before it does
        told = page.js("return playground.preview.map((found) => found.flips)")
        before = [coupling.signs for coupling in learner.network.couplings]
        page.click("learn")
        learner.learn(drawn, 7)
        pairs = zip(before, learner.network.couplings, strict=True)
        assert told == [int((signs != now.signs).sum()) for signs, now in pairs]
    check_learnt(page, learner)

    page.click("keep")
    page.click("train")
    page.wait("!playground.training")
    for _ in range(50):
        learner.learn(drawn, 7)
    assert learner.flips > 20
    check_learnt(page, learner)
    assert page.js("return playground.curve[playground.curve.length - 1].learnt") == 52
    assert page.find("error").text.endswith("%")
    check_trace(page, learner.fixed, rule, 7)

    page.click("reset")
    page.wait("playground.engine.flips === 0")
    check_learnt(page, FixedLearner(fresh, rule))
    assert page.console() == []
    assert page.requests() == []


def test_corrupted_pixels_bit_errors_and_beta_reach_the_network(opened: Any):
    page, whole, rule = opened
    clean = page.pixels(whole.network.image_shape)
    page.slide("corrupt", 50)
    changed = (page.pixels(whole.network.image_shape) != clean).mean()
    assert 0.2 < changed < 0.7
    check_trace(page, whole, rule, None)

    weights = [page.numbers(f"playground.engine.weights({n})") for n in range(2)]
    page.slide("errors", 20)
    inverted = synapses = 0
    for n, before in enumerate(weights):
        after = page.numbers(f"playground.engine.weights({n})")
        inverted += sum(int(word).bit_count() for word in before ^ after)
        synapses += whole.network.couplings[n].signs.size
    assert inverted / synapses == pytest.approx(0.1, abs=0.02)
    page.slide("errors", 0)
    for n, before in enumerate(weights):
        assert np.array_equal(page.numbers(f"playground.engine.weights({n})"), before)

    page.slide("beta", 0)
    page.click("nudge3")
    image = page.pixels(whole.network.image_shape)
    unmoved = expected_trace(whole, rule, image, 3, beta=0)
    assert np.array_equal(page.trace()[-1], unmoved[-1])
    assert page.console() == []


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_everything_fits_and_nothing_is_blank(
    browser: Any, tmp_path: Path, width: int, height: int
):
    whole, rule = small(*CASES["dense"])
    test = load("digits").test
    images, labels = test.images[:12].numpy(), test.labels[:12].numpy()
    (path,) = web_page.write(whole.network, tmp_path, images, labels, rule)
    page = Page(browser, path, width, height)
    page.to_the_end()
    assert page.js("return document.documentElement.scrollWidth") <= width
    hidden = page.js(
        "return Array.from(document.querySelectorAll('section')).map((s) => s.clientWidth)"
    )
    assert min(hidden) > 250
    for name in ("draw", "energies", "scores", "layer0"):
        colours = page.js(
            "const c = element(arguments[0]);"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return new Set(new Uint32Array(d.buffer)).size",
            name,
        )
        assert colours > 2, name
    small_ones = page.js(
        "return Array.from(document.querySelectorAll('main button')).filter((b) => b.offsetParent)"
        ".filter((b) => b.clientHeight < 36).length"
    )
    assert small_ones == 0  # large enough for a finger
