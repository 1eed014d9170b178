"""The project keeps its own rules: typed, tidy, documented, and small to import."""

import contextlib
import io
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import smoke

import scaledgd as sg

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["lint", "format", "types"],
)
def test_tools_are_content(command):
    pytest.importorskip(command[0], reason=f"{command[0]} is not installed")
    done = run(sys.executable, "-m", *command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_examples_run(tmp_path, monkeypatch):
    for name in ("pandas", "matplotlib"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGES, flags=re.DOTALL)
    outputs = []
    for k, example in enumerate(examples):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(example, f"example {k}", "exec"), {})
        outputs.append(said.getvalue().strip().splitlines())
    (filled,), (cleaned,), (ratings,), (status, error), (tensor,), *rest = outputs
    assert [len(lines) for lines in rest] == [0, 0, 1, 0, 1, 1]
    assert float(rest[2][0]) > 0.999
    assert rest[4] == ["True"]
    assert filled.startswith("0 0.")
    assert all(1 <= float(word) <= 5 for word in re.findall(r"[\d.]+", ratings))
    rank, _, worst = cleaned.split()
    assert rank == "3"
    assert float(worst) < 1e-8
    assert "loss" in status
    assert float(error) < 1e-4
    assert float(tensor) < 1e-8


def test_workflows_run_the_versions_that_are_promised():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]
    parsed = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    assert {"tests.yml", "wheels.yml", "bug.yml"} <= set(parsed)
    matrix = parsed["tests.yml"]["jobs"]["tests"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    classifiers = "\n".join(project["project"]["classifiers"])
    promised = re.findall(r"Python :: (3\.\d+)$", classifiers, flags=re.MULTILINE)
    assert matrix["python"] == promised
    built = re.findall(r"cp3(\d+)-", project["tool"]["cibuildwheel"]["build"])
    assert [f"3.{minor}" for minor in built] == promised
    assert project["project"]["requires-python"] == f">={promised[0]}"


def test_the_test_of_a_wheel_passes():
    smoke.main()


def test_ci_runs_the_command_of_the_readme():
    """The script takes it from the marked block, so the mark and one command must be there."""
    (block,) = re.findall(r"<!-- test -->\n```bash\n(.*?)```", README, flags=re.DOTALL)
    assert block.count("\n") == 1
    assert "pytest" in block
    assert "README.md" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("used", "packages"), [("0", set()), ("scaledgd.solve", {"array_api_compat"})]
)
def test_import_is_light(used, packages):
    """Nothing until a name is used, then the standard library, NumPy and array-api-compat."""
    code = (
        f"import sys{', numpy.random' if packages else ''}; before = set(sys.modules); "
        f"import scaledgd; {used}; print(*set(sys.modules) - before)"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == packages | {"scaledgd"}


@pytest.mark.parametrize("first", ["estimators", "solve", "thresholds"])
def test_functions_are_not_hidden_by_modules_of_their_names(first):
    code = (
        f"import scaledgd.{first}, scaledgd as sg; "
        "print(sg.solve.__name__, sg.thresholds.__name__, sg.metrics.__name__, sg.kernels.__name__)"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.split() == ["solve", "thresholds", "scaledgd.metrics", "scaledgd.kernels"]


def test_every_public_name_is_there():
    for name in sg.__all__:
        assert getattr(sg, name).__name__.split(".")[-1] == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sg.nothing


def test_versions_say_what_a_fit_runs_on(capsys, monkeypatch):
    monkeypatch.setenv("SCALEDGD_NUM_THREADS", "2")
    sg.show_versions()
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["scaledgd"] == sg.__version__
    assert found["numpy"] == np.__version__
    assert found["SCALEDGD_NUM_THREADS"] == "2"
    assert "of NumPy" in found["BLAS"]
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    assert "scaledgd.show_versions()" in form


@pytest.mark.parametrize(("most", "name"), [("baseline", "baseline"), ("wide", "AVX2")])
def test_versions_name_the_instruction_set(monkeypatch, most, name):
    pytest.importorskip("scaledgd.kernels._compiled", reason="the kernels are not compiled")
    monkeypatch.setenv("SCALEDGD_INSTRUCTIONS", most)
    monkeypatch.setenv("SCALEDGD_NUM_THREADS", "3")
    done = run(sys.executable, "-c", "import scaledgd; scaledgd.show_versions()")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("kernels")]
    if platform.machine() not in ("x86_64", "AMD64"):
        name = "baseline"  # nothing else is compiled there
    assert line.split(maxsplit=1)[1] == f"compiled, using {name} instructions and 3 threads"


def test_versions_say_that_kernels_are_missing():
    code = (
        "import sys; sys.modules['scaledgd.kernels._compiled'] = None; "
        "import scaledgd; scaledgd.show_versions()"
    )
    done = run(sys.executable, "-W", "error", "-c", code)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("kernels")]
    assert "not compiled (" in line
    assert "GCC or Clang" in line


def test_the_conda_recipe_needs_what_the_package_needs():
    text = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "src/scaledgd/__init__.py").read_text())
    assert f'set version = "{version[0]}"' in text
    run = text[text.index("  run:\n") : text.index("  run_constrained:")]
    listed = set(re.findall(r"- (\S+ >=\S+)", run)) - {"python >=3.11"}
    needed = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    assert listed == {need.replace(">=", " >=") for need in needed}
