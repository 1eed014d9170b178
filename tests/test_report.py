"""A report is one file that needs no network, and a browser draws its charts."""

import json
import re

import numpy as np
import pytest
from browser import complaints, fetched, opened, overflow

from scaledgd import report


def page(path):
    t = np.arange(300)
    fast = report.Curve("fast", t, 0.8**t)
    slow = report.Curve("slow <b>", t, 0.99**t, dashed=True)
    chart = report.Chart("Errors", "iteration", "error", [fast, slow], log_y=True)
    values = np.linspace(-1, 1, 60).reshape(6, 10)
    values[2, 3] = np.nan
    image = report.HeatMap("Map", values, "column", "row", diverging=True, unit="mg/L")
    sections = [
        report.Section(
            "Claims",
            report.Table(["", "where", "n"], [[True, report.Link("One", "one-it-draws"), 3.0]]),
            report.Facts({"rows": 120, "share": 0.25}),
        ),
        report.Section("One: it draws", report.Text("a < b & c"), report.Beside(chart, image)),
        report.Section("Two", chart, report.File("data.csv", "a,b\n1,2\n")),
    ]
    report.write(path, "A page </title>", sections, "below", "footer")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return page(tmp_path_factory.mktemp("report") / "report.html")


def test_nothing_is_fetched_and_nothing_breaks_out(path):
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "A page &lt;/title&gt;" in text
    assert "slow <b>" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert text.count("<section") == 3


def test_curves_are_thinned_but_keep_their_ends():
    x = np.arange(5000)
    thin_x, thin_y = report.Curve("long", x, 2.0 * x).thinned()
    assert 300 < len(thin_x) <= 600
    assert (thin_x[0], thin_x[-1], thin_y[-1]) == (0, 4999, 9998)


def test_what_is_not_finite_is_left_out():
    _, y = report.Curve("gap", [1, 2, 3], [1.0, np.nan, np.inf]).thinned()
    assert y == [1.0, None, None]


def shown(block):
    return json.loads(re.findall(r"<script[^>]*>(.*)</script>", block.html())[0])


def test_times_are_kept_to_the_second_and_labels_say_days_and_hours():
    times = np.datetime64("2024-03-04T05:00:07") + np.arange(3) * np.timedelta64(1, "s")
    data = shown(report.Chart("t", "x", "y", [report.Curve("a", times, [1, 2, 3])]))
    assert data["times"]
    assert np.diff(data["curves"][0]["x"]).tolist() == [1, 1]
    assert not shown(report.Chart("t", "x", "y", [report.Curve("a", [1], [1])]))["times"]
    assert shown(report.HeatMap("t", np.eye(3), x=times))["x"] == ["4 Mar 05:00"] * 3


def test_bands_have_two_ends():
    band = report.Curve("a", [1, 2, 3], [0, np.nan, 1], upper=[1, 2, 3])
    (curve,) = shown(report.Chart("t", "x", "y", [band]))["curves"]
    assert (curve["y"], curve["upper"]) == ([0, None, 1], [1, 2, 3])


@pytest.mark.parametrize(
    "block",
    [
        report.Chart("t", "x", "y", [report.Curve("a", [1, 2], [1])]),
        report.Chart("t", "x", "y", [report.Curve("a", [1, 2], [1, 2], upper=[1])]),
        report.HeatMap("t", np.zeros(3)),
        report.HeatMap("t", np.zeros((0, 3))),
    ],
)
def test_blocks_that_make_no_sense_are_refused(block):
    with pytest.raises(ValueError, match=r"'a'|'t'"):
        block.html()


def test_a_table_shows_truths_as_ticks_and_numbers_shortly():
    text = report.Table(["a", "b"], [[True, 0.123456], [False, None]]).html()
    assert "✓" in text
    assert "✗" in text
    assert "0.1235" in text
    assert "–" in text


def test_the_page_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "report.html"
    page(target)
    before = target.read_bytes()
    broken = report.Section("x", report.HeatMap("t", np.zeros(3)))
    with pytest.raises(ValueError, match="'t'"):
        report.write(target, "again", [broken])
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


# ---- in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_it_draws_on_wide_and_narrow_screens(browser, path, width):
    opened(browser, path, width)
    assert complaints(browser) == []
    assert fetched(browser) == []
    assert overflow(browser) <= 0
    assert len(browser.find_elements("css selector", "figure.chart svg[role=img] path")) == 4
    assert len(browser.find_elements("css selector", "figure.map svg image")) == 1
    chart, image = browser.find_elements("css selector", ".beside figure")
    beside = abs(chart.location["y"] - image.location["y"]) < 5
    assert beside == (width > 1000)
    for figure in (chart, image):
        assert figure.size["width"] <= width


def curves(chart):
    return len(chart.find_elements("css selector", "svg[role=img] g path"))


@pytest.mark.browser
def test_curves_can_be_pointed_at_hidden_and_zoomed_into(browser, path):
    from selenium.webdriver import ActionChains

    opened(browser, path, 1280)
    chart = browser.find_element("css selector", "figure.chart")
    drawing = chart.find_element("css selector", ".drawing")
    svg = drawing.find_element("css selector", "svg")
    tip = drawing.find_element("css selector", ".tip")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element_with_offset(svg, 0, 0).perform()
    assert tip.is_displayed()
    assert re.search(r"iteration: \d+", tip.text)
    assert re.search(r"slow <b>: 0\.\d+", tip.text)

    fast, slow, whole = chart.find_elements("css selector", ".legend button")
    assert not whole.is_displayed()
    assert curves(chart) == 2
    fast.click()
    assert (fast.get_attribute("aria-pressed"), slow.get_attribute("aria-pressed")) == (
        "false",
        "true",
    )
    assert curves(chart) == 1
    fast.click()
    assert curves(chart) == 2

    def labels():
        return [e.text for e in chart.find_elements("css selector", "svg[role=img] text")]

    before = labels()
    svg = drawing.find_element("css selector", "svg")
    moves = ActionChains(browser).move_to_element_with_offset(svg, -80, -60).click_and_hold()
    moves.move_by_offset(60, 70).release().perform()
    assert whole.is_displayed()
    assert labels() != before
    whole.click()
    assert labels() == before
    assert not whole.is_displayed()


@pytest.mark.browser
def test_a_map_says_what_is_under_the_pointer(browser, path):
    from selenium.webdriver import ActionChains

    opened(browser, path, 1280)
    figure = browser.find_element("css selector", "figure.map")
    svg = figure.find_element("css selector", "svg")
    ActionChains(browser).move_to_element_with_offset(svg, 0, 0).perform()
    tip = figure.find_element("css selector", ".tip")
    assert re.search(r"row \d, column \d: -?0\.\d+", tip.text)


@pytest.mark.browser
def test_the_data_come_with_the_page(browser, path):
    opened(browser, path, 1280)
    link = browser.find_element("css selector", "a.file")
    assert link.get_attribute("download") == "data.csv"
    script = "return fetch(arguments[0].href).then(r => r.text())"
    assert browser.execute_script(script, link) == "a,b\n1,2\n"


def test_the_best_row_is_marked_and_numbers_have_equal_digits():
    rows = [["means", 0.1, 2], ["ours", 0.04, 1200]]
    text = report.Table(["by", "error", "n"], rows, formats=["", ".3f", ","], marked=[1]).html()
    assert "<tr><td>means" in text
    assert "<tr class=best><td>ours" in text
    for cell in ("0.100", "0.040", "1,200"):
        assert f'<td class="number">{cell}</td>' in text


def test_axes_of_maps_know_numbers_and_times():
    times = np.datetime64("2024-03-04") + np.arange(4) * np.timedelta64(6, "h")
    data = shown(report.HeatMap("t", np.ones((3, 4)), x=times, y=[0, 10, 20]))
    assert data["times"] == [True, False]
    assert np.diff(data["atx"]).tolist() == [6 * 3600] * 3
    assert data["aty"] == [0, 10, 20]
    named = shown(report.HeatMap("t", np.ones((3, 4)), y=["a", "b", "c"]))
    assert (named["atx"], named["aty"]) == (None, None)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_on_a_page_with_tables_and_maps(browser, tmp_path, width):
    """Ticks of maps are at midnight, not at the first row, and all text is inside its picture."""
    times = np.datetime64("2024-03-04T05:00") + np.arange(100) * np.timedelta64(1, "h")
    values = np.random.default_rng(0).random((100, 30))
    values[:9] = np.nan
    names = [f"a long name of column {k}" for k in range(30)]
    image = report.HeatMap("Map", values, "columns", "time", names, times, unit="sd from the mean")
    rows = [["linear interpolation", 0.1, 0.2, 0.3, 0.4, 5.0], ["ours", *[0.123] * 5]]
    titles = ["filled by", "all", "single cells", "outages", "blackout", "seconds"]
    table = report.Table(titles, rows, "A caption " * 12, formats=["", *[".3f"] * 5], marked=[1])
    path = tmp_path / "page.html"
    report.write(path, "Wide things", [report.Section("One", table, image)])
    opened(browser, path, width)
    assert complaints(browser) == []
    assert overflow(browser) <= 0
    wide = browser.find_element("css selector", ".wide")
    assert browser.execute_script("return arguments[0].scrollWidth", wide) <= wide.size["width"] + 1
    texts = browser.find_elements("css selector", "figure.map svg text")
    assert {"5 Mar", "7 Mar"} <= {text.text for text in texts}
    box = browser.find_element("css selector", "figure.map svg").rect
    for text in texts:
        assert text.rect["x"] >= box["x"] - 1, text.text
        assert text.rect["x"] + text.rect["width"] <= box["x"] + box["width"] + 1, text.text
    assert browser.find_element("css selector", ".key").text == "missing"
