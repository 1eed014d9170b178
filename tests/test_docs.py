"""The site builds without a warning, has no broken links, and needs no network."""

import contextlib
import doctest
import io
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest

import scaledgd as sg

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TASKS = {
    "Fill the gaps of sensors": "gallery/data/fill_a_sensor.html",
    "Fill the holes in a table": "gallery/data/fill_a_table.html",
    "Separate background and movers": "gallery/data/movers.html",
    "Predict ratings": "gallery/data/ratings.html",
    "Complete a tensor": "gallery/data/tensor.html",
    "Which rank?": "gallery/trust/which_rank.html",
    "How sure is a filled cell?": "gallery/trust/how_sure.html",
    "Write your own loss": "gallery/research/own_loss.html",
    "Reproduce the paper": "gallery/research/reproduce.html",
}


def build(folder):
    """Build a copy, without files of earlier builds; return the exit status."""
    left_out = shutil.ignore_patterns("_build", "gallery", "generated")
    shutil.copytree(DOCS, folder / "docs", ignore=left_out)
    shutil.copytree(ROOT / "examples", folder / "examples")
    options = ["-W", "-n", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *options, folder / "docs", folder / "html"]
    with (folder / "log").open("w") as log:
        return subprocess.run(command, stdout=log, stderr=log, check=False).returncode


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of one build: HTML, log and exit status."""
    for name in ("sphinx_gallery", "sphinx_design", "pydata_sphinx_theme", "numpydoc"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install scaledgd[docs]")
    for name in ("myst_parser", "matplotlib", "pandas", "xarray"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install scaledgd[docs]")
    folder = tmp_path_factory.mktemp("site")
    (folder / "status").write_text(str(build(folder)))
    return folder


@dataclass
class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    path: Path
    ids: set = field(default_factory=set)
    links: list = field(default_factory=list)
    loaded: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.text = self.path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[k] for k in ("id", "name") if given.get(k)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "source", "iframe") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev", "author"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def pages(built):
    html = built / "html"
    return {str(path.relative_to(html)): Page(path) for path in sorted(html.rglob("*.html"))}


@pytest.mark.long
def test_the_site_builds_without_a_warning(built):
    log = (built / "log").read_text(encoding="utf-8")
    assert (built / "status").read_text(encoding="utf-8") == "0", log[-5000:]
    assert "WARNING" not in log


def public_names():
    """Return all public names of the package and of its two public modules."""
    found = {f"scaledgd.{name}" for name in sg.__all__}
    found |= {f"scaledgd.datasets.{name}" for name in sg.datasets.__all__}
    return found | {
        f"scaledgd.metrics.{name}"
        for name, value in vars(sg.metrics).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == "scaledgd.metrics"
    }


@pytest.mark.long
def test_every_public_name_has_an_entry_and_a_page(built, pages):
    raw = (built / "html" / "objects.inv").read_bytes()
    inventory = zlib.decompress(raw.split(b"\n", 4)[4]).decode()
    entries = {line.split()[0] for line in inventory.splitlines() if " py:" in line}
    assert public_names() - entries == set()
    modules = {f"scaledgd.{n}" for n in sg.__all__ if isinstance(getattr(sg, n), ModuleType)}
    assert modules == {"scaledgd.datasets", "scaledgd.metrics"}
    described = {Path(p).stem for p in pages if p.startswith("api/generated/")}
    assert described == public_names() - modules


@pytest.mark.long
def test_every_task_is_found_from_the_landing_page_and_has_pictures(pages):
    gallery = {p for p in pages if re.fullmatch(r"gallery/\w+/(?!index)\w+\.html", p)}
    assert gallery == set(TASKS.values())
    for task, path in TASKS.items():
        assert path in pages["index.html"].links
        assert task in pages["index.html"].text
        page = pages[path]
        assert f"<h1>{task}<" in page.text
        assert sum(f"sphx_glr_{Path(path).stem}_" in source for source in page.loaded) >= 1
        assert "What to look out for" in page.text
        assert "Traceback" not in page.text


@pytest.mark.long
def test_nothing_is_loaded_from_the_network(built, pages):
    outside = re.compile(r"(https?:)?//")
    loaded = {(name, url) for name, page in pages.items() for url in page.loaded}
    assert len(loaded) > 10 * len(pages)
    assert {(name, url) for name, url in loaded if outside.match(url)} == set()
    sheets = list((built / "html" / "_static").rglob("*.css"))
    assert len(sheets) > 3
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        found = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^)\"']+)", text)
        assert found == [], sheet


@pytest.mark.long
def test_internal_links_and_anchors_lead_somewhere(built, pages):
    html, broken, followed = built / "html", [], 0
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link) or link == "#":
                continue
            followed += 1
            path, anchor = urldefrag(link)
            target = (page.path.parent / unquote(path)).resolve() if path else page.path
            if not target.is_file():
                broken.append((name, link))
            elif anchor and target.suffix == ".html":
                there = pages[str(target.relative_to(html.resolve()))]
                if unquote(anchor) not in there.ids:
                    broken.append((name, link))
    assert broken == []
    assert followed > 1000


@pytest.mark.long
def test_the_mathematics_is_there_and_is_no_tex(pages):
    text = pages["mathematics.html"].text
    assert text.count("<math") > 200
    assert re.search(r"\\(frac|sigma|kappa|mathcal|begin)\b", text) is None
    errata = text[text.index('id="errata-of-the-monograph"') :]
    assert errata[: errata.index("</ol>")].count("<li>") == 20


def test_the_diagram_shows_the_rooms_there_are():
    text = re.sub(r"<[^>]*>", " ", (DOCS / "rooms.svg").read_text(encoding="utf-8"))
    shown = set(re.findall(r"\b([a-z_]+(?:\.py|/))", text))
    package = ROOT / "src" / "scaledgd"
    rooms = {p.name for p in package.glob("[a-z]*.py")}
    rooms |= {f"{p.parent.name}/" for p in package.glob("[a-z]*/__init__.py")}
    assert shown == rooms | {"cpp/", "benchmarks/"}


@pytest.mark.parametrize("page", ["index", "choose", "mathematics", "built", "migrate", "recipes"])
def test_what_pages_show_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for example in examples:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(example, f"{page}.md", "exec"), {})
        assert said.getvalue()
        assert "False" not in said.getvalue()
    session = "\n".join(re.findall(r"```pycon\n(.*?)```", text, flags=re.DOTALL))
    test = doctest.DocTestParser().get_doctest(session, {}, page, f"{page}.md", 0)
    result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
    assert result.attempted == session.count(">>> ")
    assert examples or session


@pytest.mark.long
def test_commands_that_are_shown_run(tmp_path):
    """The commands run, except for the long ones, and all options exist."""
    pytest.importorskip("typer", reason="typer is not installed: pip install scaledgd[cli]")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install scaledgd[cli]")
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)
    commands = re.findall(r"```bash\nscaledgd (.*)\n```", text)
    written = set()
    for command in commands:
        name, *options = command.split()
        if name in ("demo", "reproduce"):
            continue
        run = [sys.executable, "-m", "scaledgd", name, *options]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        written |= {word for word in options if (tmp_path / word).is_file()}
    assert written >= {"filled.csv", "fit.html", "answers.csv", "cleaned.csv", "wrong.csv"}
    helps = [
        subprocess.run(
            [sys.executable, "-m", "scaledgd", name, "--help"], capture_output=True, text=True
        ).stdout
        for name in ("complete", "clean", "demo", "reproduce")
    ]
    known = set(re.findall(r"--[a-z][a-z-]+", " ".join(helps)))
    assert set(re.findall(r"(?<!-)--[a-z][a-z-]+", text)) - known == set()
