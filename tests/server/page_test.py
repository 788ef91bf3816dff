"""The page at / in a real Chromium: it opens on an example, tokens stream, the tree grows and shows what runs, conversations outlive a
reload, nothing is loaded from elsewhere, and it works on a phone, in the dark and with API keys. Skipped where Chromium, its driver,
Selenium or the default model is missing.

page_test.py --screenshots FOLDER draws the pictures of docs/server.md instead."""

import base64
import hashlib
import json
import os
import shutil
import sys
import tempfile
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
        """Opens the page for the first time."""
        self.browser = browser
        browser.get(url + "/")
        browser.execute_script("localStorage.clear()")
        self.reload()

    def reload(self):
        self.browser.refresh()
        self.wait(lambda: self.browser.execute_script("return document.body.dataset.ready"))

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

        page.find(".sample button")[1].click()
        self.assertEqual(page.text("#conversation .assistant .text")[0], texts[0])
        status = page.ask("And then?", n=1, max_tokens=4)
        self.assertRegex(status, r"\d+ prompt tokens, [1-9]\d* of them cached")

    def test_a_completion_with_votes(self):
        page = self.page
        page.find("input[value=completion]")[0].click()
        self.assertFalse(page.find("#system")[0].is_displayed())
        page.ask("One, two, three,", n=5, max_tokens=1, temperature=0, vote=r"(\w+)")
        self.assertEqual(page.text("#votes li")[0].split(), ["four", *"5 of 5 samples, 100 %".split()])
        self.assertEqual([meter.get_attribute("value") for meter in page.find("#votes meter")], ["5"])
        self.assertEqual(page.text(".sample h3"), ["#1 · 5 equal samples"])  # equal ones are one card

    def test_errors_and_stops_are_said(self):
        page = self.page
        self.browser.execute_script("document.getElementById('form').noValidate = true")
        self.assertRegex(page.ask("Hello", temperature=-1, n=3), r"^The server refused the request: .*temperature.*\.$")
        self.assertEqual(page.find(".sample"), [])
        page.send("Tell me a story.", n=1, max_tokens=900, temperature=1)
        page.wait(lambda: any(page.text(".sample .text")))
        self.assertFalse(page.find("#clear")[0].is_enabled())
        page.find("#stop")[0].click()
        self.assertEqual(page.wait_for_the_end(), "Stopped.")
        self.assertIn("stopped", page.text(".sample .facts")[0])
        self.server.wait_for("coppice_samples_running", 0)

    def test_a_server_that_is_gone_is_said(self):
        self.browser.execute_cdp_cmd("Network.enable", {})
        self.addCleanup(self.emulate_network, offline=False)
        self.emulate_network(offline=True)
        self.assertRegex(self.page.ask("Hello", n=1), r"^The server does not answer\.")
        self.page.wait(lambda: self.page.text("#tree-summary")[0].startswith("The server does not answer."))

    def emulate_network(self, offline):
        self.browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})

    def test_it_opens_on_an_example_where_sharing_wins(self):
        page = self.page
        page.find("#try")[0].click()
        page.wait(lambda: page.find("#tree rect.share-4"))  # 16 samples run through the prompt
        page.wait(lambda: len(page.find("#tree rect.share-1")) > 8)
        # The plan of a real step says why.
        page.wait(lambda: any(text.startswith("Tokens 0 to ") and "read them together" in text for text in page.text("#reads li")))
        # The figures stay in view however far down the answers go.
        self.browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
        for selector in ("#read-bytes", "#unshared-bytes", "#bytes-summary"):
            top, bottom, height = self.browser.execute_script(
                "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.top, box.bottom, innerHeight]", selector
            )
            self.assertTrue(0 <= top < bottom <= height, (selector, top, bottom, height))
        self.assertIn("Quercus robur", page.find("#system")[0].get_attribute("value"))
        self.assertFalse(page.find("#intro")[0].is_displayed())
        page.find("#stop")[0].click()
        page.wait_for_the_end()
        self.server.wait_for("coppice_samples_running", 0)

    def test_conversations_outlive_a_reload(self):
        page = self.page
        page.ask("Name a tree.", n=1, max_tokens=4)
        page.ask("Name another tree.", n=2, max_tokens=4)
        shown = page.text("#conversation .text"), sorted(page.text(".sample .text"))
        self.assertEqual(shown[0][0::2], ["Name a tree.", "Name another tree."])
        page.reload()
        self.assertEqual((page.text("#conversation .text"), sorted(page.text(".sample .text"))), shown)
        # The next message goes on with the answer that stands first.
        best = page.text(".sample .text")[0]
        page.ask("And a third one.", n=1, max_tokens=2)
        self.assertEqual(page.text("#conversation .text")[3], best)

        page.find("#clear")[0].click()
        self.assertEqual(page.find("#conversation > li"), [])
        page.ask("Good morning.", n=1, max_tokens=2)
        self.assertEqual(page.text("#history option"), ["Good morning.", "Name a tree."])
        page.find("#history option")[1].click()
        self.assertEqual(len(page.find("#conversation > li")), 6)
        page.find("#forget")[0].click()
        page.reload()
        self.assertEqual(page.text("#history option")[1:], ["Good morning."])

    def test_answers_are_markdown_and_never_html(self):
        answer = "**Oaks** & `a<b>`\n\n| tree | age |\n|---|--:|\n| oak | 900 |\n\n<img src=x onerror=alert(1)>\n\n[bad](javascript:alert(1)) [good](https://example.org/)"
        html = self.browser.execute_async_script(
            "const [text, done] = arguments; import('/page/markdown.js').then((module) => {"
            "const box = document.createElement('div'); module.showMarkdown(text, box); done(box.innerHTML); })",
            answer,
        )
        self.assertIn("<p><strong>Oaks</strong> &amp; <code>a&lt;b&gt;</code></p>", html)
        self.assertIn('<td class="align-right">900</td>', html)
        self.assertIn("&lt;img src=x", html)
        self.assertIn('<a href="https://example.org/"', html)
        self.assertNotIn("<img", html)
        self.assertNotIn("javascript:", html)

    def test_copy(self):
        self.browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        self.page.ask("Hello", n=2, max_tokens=6)
        self.page.find(".sample button")[0].click()
        self.page.wait(lambda: self.page.text(".sample button")[0] == "Copied")
        copied = self.browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
        self.assertEqual(" ".join(copied.split()), " ".join(self.page.text(".sample .text")[0].split()))

    def test_the_tree_draws_what_runs_first_and_folds_what_is_cached(self):
        tree = {"steps": 1, "step_seconds": 1, "generated_tokens": 1, "kv_bytes_read": 1, "kv_bytes_read_unshared": 1, "kv_bytes_per_token": 1,
                "pages": 9, "pages_used": 9, "samples_running": 100, "requests_waiting": 0}  # fmt: skip
        cached = [{"id": i, "parent": 0, "begin": 0, "end": 50, "hits": 1, "running": 0, "pinned": False} for i in range(1, 61)]
        prompt = {"id": 61, "parent": 0, "begin": 0, "end": 500, "hits": 1, "running": 100, "pinned": False, "read_together": False, "reason": "Because."}
        leaves = [{"id": i, "parent": 61, "begin": 500, "end": 510, "hits": 0, "running": 1, "pinned": False} for i in range(62, 162)]
        nodes = [*cached, prompt, *leaves]
        self.browser.execute_script(
            "window.fetch = () => Promise.resolve(new Response(JSON.stringify(arguments[0])))", tree | {"nodes": nodes, "num_nodes": len(nodes)}
        )
        page = self.page
        page.wait(lambda: len(page.find("#tree rect.share-1")) == 100)
        self.assertEqual([rect.text for rect in page.find("#tree text")][0], "500 ×100 apart")
        self.assertEqual(len(page.find("#tree rect.apart")), 1)
        self.assertEqual([title.get_attribute("textContent") for title in page.find("#tree .fold title")], ["60 cached prompts, 3,000 tokens"])
        self.assertLess(page.find("#tree rect.share-5")[0].location["y"], page.find("#tree .fold")[0].location["y"])
        self.assertEqual(page.text("#reads li"), ["Tokens 0 to 500: Because."])

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
            "return [...document.querySelectorAll('input, textarea, select, meter, svg')]"
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
        # The answer has come into view.
        self.page.wait(lambda: self.browser.execute_script("return document.querySelector('.sample').getBoundingClientRect().bottom <= innerHeight"))
        self.page.wait(lambda: self.page.find("#tree rect"))
        self.assertIn("KV read", self.page.text("#figures")[0])
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
                self.assertTrue(page.find("#key")[0].is_displayed())
                page.find("#key")[0].send_keys("sesame\t")
                page.wait(lambda: page.text("#model") == ["small"])
                page.wait(lambda: "nodes" in page.text("#tree-summary")[0])
                self.assertIn("prompt tokens", page.ask("Hello", n=1, max_tokens=2))
                self.assertNotIn("sesame", self.browser.execute_script("return JSON.stringify(localStorage)"))


def draw_screenshots(folder):
    """The example while it runs, on a desktop and on a phone."""
    for name, width, height in (("server-page", 1280, 800), ("server-page-phone", 390, 780)):
        with Server("--max-context", 4096, "--model-name", "SmolLM2-135M-Instruct", model=MODEL) as server:
            browser = open_browser(width, height)
            try:
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
                page = Page(browser, server.url)
                page.find("#try")[0].click()
                page.wait(lambda: server.metric("coppice_generated_tokens_total") > 900)
                picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 80})
                with open(os.path.join(folder, name + ".webp"), "wb") as file:
                    file.write(base64.b64decode(picture["data"]))
            finally:
                browser.quit()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--screenshots":
        draw_screenshots(sys.argv[2])
    else:
        unittest.main()
