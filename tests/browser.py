"""A real browser without a screen, for the pages that the library writes."""

import contextlib
import shutil
import tempfile

import pytest

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextlib.contextmanager
def started():
    """Start a browser; tests take the fixture `browser`, which starts one for all of them."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no Chromium with its driver (Debian: chromium, chromium-driver)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            yield browser
        finally:
            browser.quit()


def opened(browser, path, width, height=1000):
    """Open a file on a screen of this size, whatever the least size of a window is."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.resolve().as_uri())
    browser.get_log("browser")  # forget those of earlier pages
    browser.refresh()


def complaints(browser):
    """What the page wrote to the console."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def overflow(browser):
    """By how many pixels the page is wider than the screen."""
    return browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def fetched(browser):
    """Addresses that the page asked for besides itself."""
    script = "return performance.getEntriesByType('resource').map(e => e.name)"
    return [name for name in browser.execute_script(script) if not name.startswith("data:")]
