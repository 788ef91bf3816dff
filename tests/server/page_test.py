"""The page at / in a real Chromium: tokens stream, the tree grows, nothing is loaded from elsewhere, and it works on a phone, in the
dark and with API keys. Skipped where Chromium, its driver, Selenium or the default model is missing.

page_test.py --screenshot FILE draws the picture of docs/server.md instead."""

import hashlib
import json
import shutil
import sys
import tempfile
import threading
import unittest

from server_process import Server, default_model_or_skip

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    print("skipped: there is no selenium package; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("skipped: there is no chromium or no chromedriver; scripts/apt-packages.txt names them")
    sys.exit(77)

MODEL = default_model_or_skip()
OPTIONS = ["--max-context", 1024, "--model-name", "small"]
WAIT = 600  # seconds; with sanitizers 800 tokens take minutes

# The contrast of each element's text with what is behind it, as WCAG 2.2 defines it: [what, ratio].
CONTRASTS = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (color) => color.match(/[\\d.]+/g).map(Number);
function background(element) {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
return [...document.querySelectorAll("h1, h2, h3, p, label, legend, button, span, output, dt, summary, a")]
  .filter((element) => element.checkVisibility() && element.textContent.trim() && !element.disabled)
  .map((element) => {
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(background(element))].sort((x, y) => y - x);
    return [element.outerHTML.slice(0, 80), (a + 0.05) / (b + 0.05)];
  });
"""


def open_browser(width=1400, height=1000):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


class Page:
    """The page of a server in a browser."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.get(url + "/")

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return [element.text for element in self.find(selector)]

    def set(self, name, value):
        self.browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, value)

    def wait(self, condition):
        return WebDriverWait(self.browser, WAIT, poll_frequency=0.02).until(lambda _: condition())

    def send(self, prompt, **fields):
        for name, value in ({"prompt": prompt} | fields).items():
            self.set(name.replace("_", "-"), value)
        self.find("#send")[0].click()

    def wait_for_the_end(self):
        self.wait(lambda: self.find("#send")[0].is_enabled())
        return self.text("#status")[0]

    def ask(self, prompt, **fields):
        self.send(prompt, **fields)
        return self.wait_for_the_end()

    def emulate_scheme(self, scheme):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(*OPTIONS, model=MODEL))
        cls.browser = open_browser()
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        for kind in ("performance", "browser"):
            self.browser.get_log(kind)  # takes what other tests have left
        self.page = Page(self.browser, self.server.url)

    def test_a_chat_streams_and_the_tree_grows(self):
        page = self.page
        page.wait(lambda: page.text("#model") == ["small"])
        page.wait(lambda: "nodes" in page.text("#tree-summary")[0])
        before = len(page.find("#tree rect"))
        # Long enough that the tree, which is asked for twice a second, is drawn before the end.
        page.send("Tell me a long story about a forest of tall trees.", n=2, max_tokens=400)
        seen = page.wait(lambda: [text for text in page.text(".sample .text") if text])  # the answer has begun
        # The samples run through the prompt together while it goes on.
        page.wait(lambda: page.find("#tree rect.share-2"))
        self.assertFalse(page.find("#send")[0].is_enabled(), "the answer came at once, not as a stream")
        self.assertIn("prompt tokens", page.wait_for_the_end())
        texts = page.text(".sample .text")
        self.assertEqual(len(texts), 2)
        self.assertGreater(max(map(len, texts)), max(map(len, seen)))
        page.wait(lambda: len(page.find("#tree rect")) > before)
        means = [float(facts.split("log-probability ")[1].split()[0]) for facts in page.text(".sample .facts")]
        self.assertEqual(means, sorted(means, reverse=True))
        self.assertIn("times as much", page.text("#bytes-summary")[0])

        page.find(".sample button")[0].click()
        self.assertEqual(page.text("#conversation li")[1], texts[0])
        status = page.ask("And then?", n=1, max_tokens=4)
        self.assertRegex(status, r"\d+ prompt tokens, [1-9]\d* of them cached")

    def test_a_completion_with_votes(self):
        page = self.page
        page.find("input[value=completion]")[0].click()
        self.assertFalse(page.find("#system")[0].is_displayed())
        page.ask("One, two, three,", n=5, max_tokens=1, temperature=0, vote=r"(\w+)")
        self.assertRegex(page.text("#votes li")[0], r"^four: 5 samples$")

    def test_errors_and_stops_are_said(self):
        page = self.page
        self.browser.execute_script("document.getElementById('form').noValidate = true")
        self.assertIn("temperature", page.ask("Hello", temperature=-1, n=1))
        page.send("Tell me a story.", n=1, max_tokens=900, temperature=1)
        page.wait(lambda: any(page.text(".sample .text")))
        page.find("#stop")[0].click()
        self.assertEqual(page.wait_for_the_end(), "stopped")
        self.server.wait_for("coppice_samples_running", 0)

    def test_nothing_from_elsewhere_and_no_errors(self):
        page = self.page
        page.ask("Hello", n=1, max_tokens=2)
        page.wait(lambda: page.find("#tree rect"))
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.assertTrue(message["params"]["request"]["url"].startswith((self.server.url + "/", "data:")), message)
        self.assertEqual([entry for entry in self.browser.get_log("browser") if entry["level"] != "DEBUG"], [])  # hints are DEBUG
        blocked = self.browser.execute_async_script(
            "const done = arguments[0]; fetch('https://example.org/').then(() => done('sent'), (error) => done(error.name))"
        )
        self.assertEqual(blocked, "TypeError")
        page.wait(lambda: any("Content Security Policy" in entry["message"] for entry in self.browser.get_log("browser")))

    def test_everything_has_a_name_and_contrast(self):
        page = self.page
        page.ask("Hello", n=2, max_tokens=2)
        unnamed = self.browser.execute_script(
            "return [...document.querySelectorAll('input, textarea, meter, svg')]"
            ".filter((e) => !e.labels?.length && !e.getAttribute('aria-label')).map((e) => e.outerHTML)"
        )
        self.assertEqual(unnamed, [])
        backgrounds = set()
        for scheme in ("light", "dark"):
            page.emulate_scheme(scheme)
            backgrounds.add(self.browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
            for what, contrast in self.browser.execute_script(CONTRASTS):
                self.assertGreaterEqual(contrast, 4.5, (scheme, what))
        self.assertEqual(len(backgrounds), 2)

    def test_a_phone_needs_no_sideways_scrolling(self):
        metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.addCleanup(self.browser.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})
        self.page.ask("Hello", n=3, max_tokens=8)
        self.page.wait(lambda: self.page.find("#tree rect"))
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        for button in self.page.find("button"):
            if button.is_displayed():
                self.assertGreaterEqual(button.size["height"], 24, button.text)  # WCAG 2.2, target size

    def test_api_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(f"alice {hashlib.sha256(b'sesame').hexdigest()}\n")
            keys.flush()
            with Server(*OPTIONS, "--api-keys", keys.name, model=MODEL) as server:
                page = Page(self.browser, server.url)
                page.wait(lambda: "API key" in page.text("#tree-summary")[0])
                page.find("#key")[0].send_keys("sesame\t")
                page.wait(lambda: page.text("#model") == ["small"])
                page.wait(lambda: "nodes" in page.text("#tree-summary")[0])
                self.assertIn("prompt tokens", page.ask("Hello", n=1, max_tokens=2))


def draw_screenshot(path):
    questions = ("What is a coppice?", "How old does an oak get?", "Why do leaves fall?", "Which trees grow fast?", "What is a grove?")
    system = (
        "You are the voice of a botanical garden. Answer each question of a visitor in two or three friendly sentences, name the plant "
        "that you speak of, and say where in the garden it grows. If you do not know something, say so and point to the gardeners, who "
        "are at the main gate every morning. Never recommend to eat anything that grows here."
    )
    with Server("--max-context", 1024, "--model-name", "SmolLM2-135M-Instruct", model=MODEL) as server:
        browser = open_browser(height=1250)
        page = Page(browser, server.url)

        def load(question):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            server.ask("POST", "/v1/chat/completions", {"messages": messages, "n": 2, "max_tokens": 120, "temperature": 0.9, "ignore_eos": True})

        for question in questions:
            threading.Thread(target=load, args=(question,)).start()
        page.send("What is the oldest tree here?", system=system, n=6, max_tokens=90)
        page.wait(lambda: server.metric("coppice_generated_tokens_total") > 600)
        browser.save_screenshot(path)
        server.wait_for("coppice_http_requests_active", 0)
        browser.quit()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--screenshot":
        draw_screenshot(sys.argv[2])
    else:
        unittest.main()
