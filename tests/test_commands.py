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


def test_the_demo_beats_its_baselines_and_says_so(demo):
    folder, done = demo
    assert done.returncode == 0, done.stderr
    found = dict(
        re.findall(
            r"(column means|gradient descent|SoftImpute-like|scaledgd)\D+([\d.]+) ?%", done.stdout
        )
    )
    assert set(found) == {"column means", "gradient descent", "SoftImpute-like", "scaledgd"}
    errors = {name: float(value) for name, value in found.items()}
    assert 1 < errors["scaledgd"] < 10
    assert errors["scaledgd"] < errors["SoftImpute-like"] < errors["gradient descent"]
    assert errors["gradient descent"] < 0.5 * errors["column means"]
    assert "simulation" in done.stdout
    assert [p.name for p in folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_of_the_demo(demo, width):
    folder, _ = demo
    with started() as browser:
        opened(browser, folder / "report.html", width)
        assert complaints(browser) == []
        assert fetched(browser) == []
        assert overflow(browser) <= 0
        assert len(browser.find_elements("css selector", "figure.map svg[role=img]")) == 4
        assert len(browser.find_elements("css selector", "figure.chart svg[role=img]")) == 6


def test_the_demo_writes_over_its_own_page_only(demo, tmp_path):
    mine = tmp_path / "report.html"
    mine.write_text("my own work")
    done = scaledgd("demo", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        r"scaledgd: error: --out report\.html exists .* another name\n", done.stderr
    )
    assert mine.read_text() == "my own work"
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
