"""Run all or some benchmarks, and write one table and one plot.

    python -m benchmarks                      everything, into benchmarks/results
    python -m benchmarks P1 P4 --repeats 3    two problems
    python -m benchmarks --peers cmfrec       some libraries only
    python -m benchmarks kernels growth       the kernels only
    python -m benchmarks --device cuda        kernels and fits on a GPU
    OMP_NUM_THREADS=1 python -m benchmarks    seconds of the processor, one thread: for machines
                                              that others use meanwhile

An interrupted run resumes; --fresh measures everything again.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# two threads for every library, set before they are imported
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "2")

from . import kernels, measure, problems, real_data, report  # noqa: E402
from .answers.asked import Ask  # noqa: E402
from .answers.defaults import defaults  # noqa: E402
from .contestants import OURS, PEERS, Contestant, threads  # noqa: E402

PARTS = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "kernels", "growth")
PREDICTED = ("P6", "P7", "P8")
"""Parts in which errors are compared, not only times."""


def instances(part: str, quick: bool) -> list[problems.Problem]:
    """Return the problems of a part."""
    if part == "P1":
        kappas = (1, 100) if quick else (1, 10, 100, 1000)
        return [problems.completion(k, t) for k in kappas for t in (1e-6, 1e-10)]
    if part == "P2":
        return [problems.large(share=0.2 if quick else 1.0)]
    if part == "P4":
        return [problems.robust(k) for k in ((10,) if quick else (1, 10, 100))]
    if part == "P5":
        return [problems.tensor(k) for k in ((10,) if quick else (1, 10))]
    return []


def rivals(problem: problems.Problem, wanted: list[str]) -> list[Contestant]:
    """Return the installed libraries that can solve a problem."""
    m = len(problem.data["values"]) if "values" in problem.data else 0
    return [
        peer
        for peer in PEERS
        if problem.kind in peer.kinds
        and peer.installed
        and m <= peer.largest
        and problem.target >= peer.finest
        and (not wanted or any(name.lower() in peer.name.lower() for name in wanted))
    ]


def compete(part: str, asked: Any, results: measure.Results, bar: Any) -> None:
    """Compare scaledgd with every library on the problems of a part."""
    for problem in instances(part, asked.quick):
        ours = OURS[problem.kind]
        pending = [
            peer
            for peer in rivals(problem, asked.peers)
            if f"contest/{problem.name}/{peer.name}" not in results
        ]
        if not pending:
            continue
        bar(f"{problem.name}: scaledgd")
        effort, best = measure.least_effort(ours, problem)
        if effort is None:
            raise RuntimeError(f"scaledgd got no further than {best:.2g} on {problem.name}")
        for peer in pending:
            key = f"contest/{problem.name}/{peer.name}"
            note = lambda m, p=problem: bar(f"{p.name}: {m}")  # noqa: E731
            found = measure.contest(ours, peer, problem, asked.repeats, effort, note)
            results.put(key, found)


def scarce(asked: Any, results: measure.Results, bar: Any) -> None:
    """P3: count which methods recover the truth from few observations."""
    names = ("cmfrec ALS", "SciPy L-BFGS-B on the factors")
    contestants = [OURS["completion"], *(p for p in PEERS if p.name in names and p.installed)]
    efforts = {"scaledgd": 27, "cmfrec ALS": 300, "SciPy L-BFGS-B on the factors": 600}
    for kappa in (1, 100):
        for ratio in (1.6, 2.5) if asked.quick else (1.3, 1.6, 2.0, 2.5, 3.0):
            for seed in (1,) if asked.quick else (1, 2):
                problem = problems.scarce(kappa, ratio, seed)
                for contestant in contestants:
                    key = f"scarce/{problem.name}/{contestant.name}"
                    if key in results:
                        continue
                    bar(f"{problem.name}: {contestant.name}")
                    effort = efforts[contestant.name]
                    seconds, error = measure.timed(contestant, problem, effort)
                    record = {"peer": contestant.name, "kappa": kappa, "ratio": ratio}
                    record |= {"seconds": seconds, "success": bool(error < problem.target)}
                    results.put(key, record)


def predicted(part: str, asked: Any) -> Iterator[problems.Problem]:
    """Yield the problems of a part in which errors of predictions are compared."""
    if part == "P7":
        for m in (1_000_000,) if asked.quick else (1_000_000, 10_000_000):
            yield problems.skewed(m)
        return
    folder = real_data.find_folder(asked.ratings)
    if folder is None:
        return
    if part == "P8":
        yield from map(problems.movielens, folder.glob("movielens-100k/*.npz"))
        return
    paths = sorted(folder.glob("gcmc-*/*.npz")) + sorted(folder.glob("ratings*.npz"))
    yield from map(problems.ratings, paths)


def rated(part: str, asked: Any, results: measure.Results, bar: Any) -> None:
    """P6 to P8: compare errors and times, with the own settings of every library."""
    for problem in predicted(part, asked):
        ours = OURS[problem.kind]
        for contestant in (ours, *rivals(problem, asked.peers)):
            key = f"ratings/{problem.name}/{contestant.name}"
            if key in results:
                continue
            bar(f"{problem.name}: {contestant.name}")
            runs = []
            for _ in range(1 if part == "P6" else asked.repeats):
                runs.append(measure.timed(contestant, problem, contestant.efforts[0]))
                if runs[-1][0] > measure.PATIENCE:
                    break
            seconds, error = (statistics.median(found) for found in zip(*runs, strict=True))
            record = {"problem": problem.name, "peer": contestant.name}
            results.put(key, {**record, "seconds": seconds, "error": error, "runs": len(runs)})


def by_default(asked: Any, results: measure.Results, bar: Any) -> None:
    """P9: compare the cost and quality of the defaults with those of imputers."""
    ask = Ask(real_data.find_folder(asked.ratings), True, asked.quick, " ".join(asked.peers))
    if "defaults/all" not in results:
        bar("defaults")
        results.put("defaults/all", list(defaults(ask)))


def machine() -> dict[str, Any]:
    """Return the processor and the versions."""
    import numpy
    import scipy

    import scaledgd

    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "scaledgd": scaledgd.__version__,
    }


def written(results: measure.Results, folder: Path) -> str:
    """Write the tables and the plot, and return the tables."""
    groups: dict[str, list[Any]] = {}
    for key, record in sorted(results.records.items()):
        groups.setdefault(key.split("/")[0], []).append(record)
    text = []
    here = results.records.get("machine")
    if here:
        cores = f"{here['cores']} cores ({here['processor']})"
        how = "seconds of the processor, one thread" if here["threads"] == 1 else "two threads"
        versions = f"Python {here['python']}, NumPy {here['numpy']}"
        text.append(f"Measured on {cores}, {how}, {versions}.")
    if "contest" in groups:
        text += ["## To the same accuracy", report.contests(groups["contest"])]
    if "scarce" in groups:
        text += ["## P3: few observations, recovered or not", report.successes(groups["scarce"])]
    for name in sorted({r["problem"] for r in groups.get("ratings", [])}):
        mine = [r for r in groups["ratings"] if r["problem"] == name]
        text += [f"## {name}", report.ratings(mine)]
    if "defaults" in groups:
        text += ["## P9: the defaults", report.defaults(groups["defaults"][0])]
    found = {"contests": groups.get("contest", [])}
    if "kernels" in groups:
        text += ["## Kernels", report.kernels(groups["kernels"][0])]
    if "growth" in groups:
        grown = found["growth"] = groups["growth"][0]
        text += ["## Growth of an iteration", report.growth(grown)]
        for kind, key in (("entries", "entries"), ("rank", "rank")):
            mine = [r for r in grown if r["kind"] == kind and r["threads"] == 2]
            text.append(f"Slope against {key}, log-log: {report.slope(mine, key):.2f}.")
    report.plot(found, folder / "benchmarks.png")
    whole = "\n\n".join(text) + "\n"
    (folder / "benchmarks.md").write_text(whole)
    return whole


def main() -> None:
    """Run the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a GPU")
    parser.add_argument("--peers", nargs="*", default=[], help="parts of the names of libraries")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="smaller problems")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--ratings", type=Path, help="folder of the data of P6 and P8")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = parser.parse_args()
    if asked.device == "cuda":
        from . import gpu

        return gpu.main(asked.parts)
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    parts = asked.parts or PARTS
    path = asked.out / ("quick.json" if asked.quick else "measured.json")
    if asked.fresh and path.exists():
        path.unlink()
    results = measure.Results(path)
    results.put("machine", machine())

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(parts))
        for part in parts:

            def bar(message: str, part: str = part) -> None:
                progress.update(task, description=f"{part} · {message}")

            bar("")
            if part == "P3":
                scarce(asked, results, bar)
            elif part in PREDICTED:
                rated(part, asked, results, bar)
            elif part == "P9":
                by_default(asked, results, bar)
            elif part == "kernels" and "kernels/all" not in results:
                results.put("kernels/all", kernels.table(0.2 if asked.quick else 1.0))
            elif part == "growth" and "growth/all" not in results:
                results.put("growth/all", kernels.growth(1_000_000 if asked.quick else 10**8))
            else:
                compete(part, asked, results, bar)
            progress.advance(task)
    print(written(results, asked.out))


if __name__ == "__main__":
    main()
