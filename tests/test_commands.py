"""``scaledgd demo`` and ``scaledgd reproduce``."""

import re
import subprocess
import sys

import pytest
from browser import complaints, fetched, opened, overflow, started


def scaledgd(*arguments, cwd):
    command = [sys.executable, "-m", "scaledgd", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, scaledgd("demo", cwd=folder)


KINDS = ("all", "single cells", "outages", "blackout")
METHODS = ("column means", "linear interpolation", "KNNImputer", "IterativeImputer", "scaledgd")


def test_the_demo_beats_its_baselines_and_says_so(demo):
    folder, done = demo
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = re.findall(rf"({'|'.join(METHODS)}) +" + r" +".join([r"([\d.]+)"] * 5), done.stdout)
    assert tuple(name for name, *_ in rows) == METHODS
    errors = {name: dict(zip(KINDS, map(float, values), strict=False)) for name, *values in rows}
    ours = errors.pop("scaledgd")
    for other in errors.values():
        assert ours["all"] < 0.8 * other["all"]
        assert ours["outages"] < 0.8 * other["outages"]
        assert ours["blackout"] < other["blackout"]
        assert ours["single cells"] <= other["single cells"]
    (inside,) = re.findall(r"(\d+)% of the hidden readings are within 90% intervals", done.stdout)
    assert 85 <= int(inside) <= 95
    assert "simulation" in done.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["report.html", "report.png"]


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_of_the_demo(demo, width):
    folder, _ = demo
    with started() as browser:
        opened(browser, folder / "report.html", width)
        assert complaints(browser) == []
        assert fetched(browser) == []
        assert overflow(browser) <= 0
        assert len(browser.find_elements("css selector", "figure.map svg[role=img]")) == 4
        charts = browser.find_elements("css selector", "figure.chart svg[role=img]")
        assert len(charts) in (5, 6)  # a loss that rises is not shown
        assert len(browser.find_elements("css selector", "tr.best")) == 1
        labels = [text.text for text in charts[0].find_elements("css selector", "text")]
        assert any(re.fullmatch(r"\d+ Mar", label) for label in labels)


@pytest.mark.long
def test_the_demo_writes_over_its_own_page_only(demo, tmp_path):
    mine = tmp_path / "report.html"
    mine.write_text("my own work")
    done = scaledgd("demo", cwd=tmp_path)
    assert done.returncode == 2
    message = r"scaledgd: error: --out report\.html: report\.html exists .* another name\n"
    assert re.fullmatch(message, done.stderr)
    assert mine.read_text() == "my own work"
    picture = tmp_path / "other.png"
    picture.write_text("my own picture")
    done = scaledgd("demo", "--out", "other.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "other.png exists" in done.stderr
    assert picture.read_text() == "my own picture"
    assert not (tmp_path / "other.html").exists()
    folder, _ = demo
    assert scaledgd("demo", "--out", str(folder / "report.html"), cwd=tmp_path).returncode == 0


def test_reproduce_one_item(tmp_path):
    done = scaledgd("reproduce", "figure3", "--quick", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Fig. 3" in done.stdout
    assert "2 of 2 claims" in done.stdout
    assert (tmp_path / "here" / "report.html").exists()
    assert (tmp_path / "here" / "data" / "figure3.csv").exists()


def test_reproduce_names_the_items_there_are(tmp_path):
    done = scaledgd("reproduce", "figure9", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"scaledgd: error: .*figure9.*figure1.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
    listed = scaledgd("reproduce", "--list", cwd=tmp_path)
    assert listed.returncode == 0
    assert "theorem7" in listed.stdout


def test_reproduce_says_what_is_wrong_with_the_data(tmp_path):
    done = scaledgd("reproduce", "figure3", "--chlorine", "nowhere.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"scaledgd: error: .*nowhere\.txt.*\n", done.stderr)
