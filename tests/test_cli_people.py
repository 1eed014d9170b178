"""Files as people have them: they are filled, or one line says what to do."""

import datetime
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scaledgd.cli.failures import reworded

QUICK = ("--rank", 2, "--center", "columns", "--scale", "none", "--hold-out", 0, "--smooth", "none")

PLAIN = ("--rank", 2, "--center", "columns", "--scale", "columns", "--hold-out", 0)


def table(rows=30, columns=6, places=2, seed=0):
    """A table of rank 2 with levels around 20, rounded; and the same with holes."""
    rng = np.random.default_rng(seed)
    X = 20 + rng.standard_normal((rows, 2)) @ rng.standard_normal((2, columns))
    X = np.round(X, places)
    return X, np.where(rng.random(X.shape) < 0.15, np.nan, X)


def cells(Y, form="{:.2f}"):
    return [["" if np.isnan(v) else form.format(v) for v in row] for row in Y]


def lines(rows, mark=",", names=None, end="\n"):
    names = names or [f"s{j}" for j in range(len(rows[0]))]
    return end.join(mark.join(row) for row in [names, *rows]) + end


def german(value):
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


def dated(rows, how):
    first = datetime.datetime(2024, 3, 4)
    return [
        [(first + datetime.timedelta(hours=6 * i)).strftime(how), *row]
        for i, row in enumerate(rows)
    ]


X, Y = table()
BIG = 100 * Y  # above a thousand
WHOLE = np.rint(Y)
NAMES = "abcdef"


def plain(mark=",", form="{:.2f}", names=None, data=Y, end="\n"):
    return lines(cells(data, form), mark, names, end)


# name: (file, its content, options, what the note says, how a filled cell looks)
GOOD = {
    "commas": ("in.csv", plain(), (), "", r"\d\d\.\d\d"),
    "semicolons": ("in.csv", plain(";"), (), "semicolons", r"\d\d\.\d\d"),
    "tabs in a csv": ("in.csv", plain("\t"), (), "tabs", r"\d\d\.\d\d"),
    "bars": ("in.txt", plain("|"), (), "vertical bars", r"\d\d\.\d\d"),
    "spaces": (
        "in.dat", plain(" ").replace("  ", " NA ").replace("  ", " NA ").replace(" \n", " NA\n")
        .replace("\n ", "\nNA "), (), "spaces", r"\d\d\.\d\d",
    ),
    "commas in a tsv": ("in.tsv", plain(","), (), "commas", r"\d\d\.\d\d"),
    "decimal commas": (
        "in.csv", plain(";").replace(".", ","), (), "decimal commas", r"\d\d,\d\d"
    ),
    "decimal commas in quotes": (
        "in.csv", lines([[f'"{c}"'.replace(".", ",") if c else "" for c in r] for r in cells(Y)]),
        (), "decimal commas", r'"\d\d,\d\d"',
    ),
    "thousands": (
        "in.csv", lines([[f'"{c}"' if c else "" for c in r] for r in cells(BIG, "{:,.0f}")]),
        (), "commas between thousands", r'"\d,\d\d\d"',
    ),
    "German thousands": (
        "in.csv", lines([["" if np.isnan(v) else german(v) for v in r] for r in BIG], ";"),
        (), "points between thousands", r"\d\.\d\d\d,\d\d",
    ),
    "Swiss thousands": (
        "in.csv", lines([[c.replace(",", "'") for c in r] for r in cells(BIG, "{:,.0f}")]),
        (), "apostrophes between thousands", r"\d'\d\d\d",
    ),
    "French thousands": (
        "in.csv", lines([[c.replace(",", "\u202f") for c in r] for r in cells(BIG, "{:,.0f}")]),
        (), "spaces between thousands", "\\d\u202f\\d\\d\\d",
    ),
    "units": ("in.csv", plain(form="{:.1f} kg"), (), "the unit 'kg'", r"\d\d\.\d kg"),
    "degrees": ("in.csv", plain(form="{:.1f}°C"), (), "the unit '°C'", r"\d\d\.\d°C"),
    "percent": ("in.csv", plain(form="{:.1f}%"), (), "percent signs", r"\d\d\.\d%"),
    "dollars": ("in.csv", plain(form="${:.2f}"), (), "the unit '$'", r"\$\d\d\.\d\d"),
    "euros": (
        "in.csv", plain(";", form="{:.2f} €").replace(".", ","), (), "the unit '€'", r"\d\d,\d\d €"
    ),
    "true minus signs": (
        "in.csv", plain(form="−{:.1f} °C"), (), "the unit '°C' and true minus signs",
        r"−\d\d\.\d °C",
    ),
    "no names": ("in.csv", plain().split("\n", 1)[1], (), "", r"\d\d\.\d\d"),
    "dates without names": (
        "in.csv", lines(dated(cells(Y), "%Y-%m-%d %H:%M")).split("\n", 1)[1], (), "",
        r"\d\d\.\d\d",
    ),
    "German dates": (
        "in.csv", lines(dated(cells(Y), "%d.%m.%Y %H:%M"), names=["Zeit", *"abcdef"]), (), "",
        r"\d\d\.\d\d",
    ),
    "American dates": (
        "in.csv", lines(dated(cells(Y), "%m/%d/%Y %I:%M %p"), names=["time", *"abcdef"]), (), "",
        r"\d\d\.\d\d",
    ),
    "Windows line ends": ("in.csv", plain(end="\r\n"), (), "", r"\d\d\.\d\d"),
    "byte-order mark": ("in.csv", "\ufeff" + plain(), (), "", r"\d\d\.\d\d"),
    "Latin-1": (
        "in.csv", plain(names=["Größe", *"bcdef"]).encode("latin-1"), (), "", r"\d\d\.\d\d"
    ),
    "umlauts in cells": (
        "in.csv", lines(
            [[f"Müller {i}", *r] for i, r in enumerate(cells(Y, "{:.2f} €"))], ";",
            ["Größe", *NAMES],
        ).encode("cp1252"), (), "the unit '€'", r"\d\d\.\d\d €",
    ),
    "UTF-16": ("in.csv", plain("\t").encode("utf-16"), (), "tabs", r"\d\d\.\d\d"),
    "a line for Excel": ("in.csv", "sep=;\n" + plain(";"), (), "above the table", r"\d\d\.\d\d"),
    "a title": ("in.csv", "Readings\n\n" + plain(), (), "the first line is", r"\d\d\.\d\d"),
    "a title and semicolons": (
        "in.csv", "Readings of 2024; all\n" + plain(";"), (), "semicolons", r"\d\d\.\d\d"
    ),
    "a title saved by Excel": (
        "in.csv", "Readings,,,,,\r\n,,,,,\r\n" + plain(end="\r\n"), (), "the first 2 lines are",
        r"\d\d\.\d\d",
    ),
    "comments": (
        "in.csv", "# made by\n# somebody, for you\n" + plain(), (), "the first 2 lines are",
        r"\d\d\.\d\d",
    ),
    "units below the names": (
        "in.csv", plain().replace("\n", "\n°C,kg,%,m,m,\n", 1), (), "holds no numbers",
        r"\d\d\.\d\d",
    ),
    "groups above the names": (
        "in.csv", "left,,,right,,\n" + plain(), (), "holds no numbers", r"\d\d\.\d\d"
    ),
    "identifiers": (
        "in.csv", lines(
            [[*r, f"{7919 * i % 1000:05d}"] for i, r in enumerate(cells(Y))],
            names=[*"abcdef", "customer_id"],
        ), (), "taken as identifiers", r"\d\d\.\d\d",
    ),
    "dates in several formats": (
        "in.csv", lines(
            [[a[i % 2][0], *a[0][1:]] for i, a in enumerate(zip(
                dated(cells(Y), "%Y-%m-%d %H:%M"), dated(cells(Y), "%d.%m.%Y"), strict=True
            ))], names=["time", *"abcdef"],
        ), (), "", r"\d\d\.\d\d",
    ),
    "integers": ("in.csv", plain(form="{:.0f}", data=WHOLE), (), "", r"\d\d"),
    "two columns of one name": (
        "in.csv", plain(names=["a", "a", "b", "b", "c", "d"]), (), "", r"\d\d\.\d\d"
    ),
    "numbers of rows": (
        "in.csv", lines([[str(i), *r] for i, r in enumerate(cells(Y))], names=["id", *"abcdef"]),
        (), "", r"\d\d\.\d\d",
    ),
    "names of rows": (
        "in.csv", lines([[f"p{i % 7}", *r] for i, r in enumerate(cells(Y))], names=["who", *NAMES]),
        ("--index", "who"), "", r"\d\d\.\d\d",
    ),
    "repeated rows": ("in.csv", lines(cells(np.vstack([Y, Y]))), (), "", r"\d\d\.\d\d"),
    "an empty column": (
        "in.csv", lines([[*r, ""] for r in cells(Y)]), (), "", r"\d\d\.\d\d"
    ),
    "dashes for missing": (
        "in.csv", plain().replace(",,", ",-,").replace(",,", ",-,"), (), "", r"\d\d\.\d\d"
    ),
    "a delimiter at the end": (
        "in.csv", plain().replace("\n", ",\n"), (), "", r"\d\d\.\d\d"
    ),
    "dates with days of the week": (
        "in.csv", lines(dated(cells(Y), '"%a, %d %b %Y %H:%M"'), names=["day", *NAMES]), (), "",
        r"\d\d\.\d\d",
    ),
    "months": (
        "in.csv", lines(
            [[f"{('Jan', 'Apr', 'Jul', 'Oct')[i % 4]}-{20 + i // 4}", *r]
             for i, r in enumerate(cells(Y))], names=["month", *NAMES],
        ), (), "", r"\d\d\.\d\d",
    ),
    "dates and times of day": (
        "in.csv", lines(
            dated([r[:1] + r for r in cells(Y)], "%d/%m/%Y,%H.%M.%S"),
            names=["Date", "Time", "again", *NAMES],
        ), (), "the dates and the times of day", r"\d\d\.\d\d",
    ),
    "seconds since 1970": (
        "in.csv", lines(
            [[str(1_709_510_400 + 900 * i), *r] for i, r in enumerate(cells(Y))],
            names=["timestamp", *NAMES],
        ), (), "--date timestamp reads them as times", r"\d\d\.\d\d",
    ),
    "codes with leading zeros": (
        "in.csv", lines(
            [[*r, f"{7919 * i % 1000:05d}"] for i, r in enumerate(cells(Y))],
            names=[*NAMES, "station"],
        ), (), "taken as identifiers by leading zeros", r"\d\d\.\d\d",
    ),
    "long numbers of orders": (
        "in.csv", lines(
            [[str(900_719_925_474_099_300 - 7 * i), *r] for i, r in enumerate(cells(Y))],
            names=["order", *NAMES],
        ), (), "or by length", r"\d\d\.\d\d",
    ),
    "a total": (
        "in.csv", lines(
            [*([f"p{i}", *r] for i, r in enumerate(cells(Y))), ["Total:", *["600.00"] * 6]],
            names=["who", *NAMES],
        ), (), "the last rows are totals", r"\d\d\.\d\d",
    ),
    "means and no end of line": (
        "in.csv", lines(
            [*([str(i), *r] for i, r in enumerate(cells(Y))), ["Sum", *["600.00"] * 6],
             ["Mean", *["20.00"] * 6]], names=["", *NAMES],
        )[:-1], (), "the last rows are totals", r"\d\d\.\d\d",
    ),
    "yes and no": (
        "in.csv", lines(
            [[*r, "Yes" if i % 3 else "No"] for i, r in enumerate(cells(Y))], names=[*NAMES, "ok"]
        ), (), "'Yes' and 'No' are read as true and false", r"\d\d\.\d\d",
    ),
    "negative in brackets": (
        "in.csv", lines([[c if v > 20 else c and f"({c})" for c, v in zip(*r, strict=True)]
                         for r in zip(cells(Y), X, strict=True)], names=list(NAMES)),
        (), "brackets where they are negative", r"\d+\.\d\d|\(\d+\.\d\d\)",
    ),
    "losses in dollars": (
        "in.csv", lines([[f'"(${c})"' if c else "" for c in r] for r in cells(BIG, "{:,.2f}")]),
        (), "commas between thousands, the unit '$' and brackets", r'"\(\$\d,\d\d\d\.\d\d\)"',
    ),
    "dollars by name": (
        "in.csv", plain(form="USD {:.2f}"), (), "the unit 'USD'", r"USD \d\d\.\d\d"
    ),
    "spaces that do not break": (
        "in.csv", lines([[f"\u00a0{c}\u200b" if c else "\u00a0" for c in r] for r in cells(Y)]),
        (), "", r"\d\d\.\d\d",
    ),
    "all cells in quotes": (
        "in.csv", lines([[f'"{c}"' for c in r] for r in cells(Y)]), (), "", r'"\d\d\.\d\d"'
    ),
    "errors of formulas": (
        "in.csv", plain().replace(",,", ",#DIV/0!,").replace(",,", ",#VALUE!,"), (), "",
        r"\d\d\.\d\d",
    ),
    "colons for missing": (
        "in.tsv", plain("\t").replace("\t\t", "\t: \t").replace("\t\t", "\t..\t"), (), "",
        r"\d\d\.\d\d",
    ),
    "padded with spaces": (
        "in.csv", lines([[f" {c:>8} " for c in r] for r in cells(Y)]), (), "", r"\d\d\.\d\d"
    ),
    "dates as names of columns": (
        "in.csv", lines(cells(Y), names=[f"{d:02d}.01.2024" for d in range(1, 7)]), (), "",
        r"\d\d\.\d\d",
    ),
    "a word for missing": (
        "in.csv", plain().replace(",,", ",-999.00,").replace(",,", ",-999.00,"),
        ("--missing", "-999"), "", r"\d\d\.\d\d",
    ),
}  # fmt: skip


EMPTY = ("", "NA", "-", "-999.00", ":", "..", "#DIV/0!", "#VALUE!")
BLANKS = ' "\u00a0'
ENCODINGS = {"Latin-1": "latin-1", "umlauts in cells": "cp1252", "UTF-16": "utf-16"}


def write(name, content):
    data = content if isinstance(content, bytes) else content.encode()
    Path(name).write_bytes(data)
    return data


@pytest.mark.parametrize("name", GOOD)
def test_files_that_are_filled(run, name):
    """Cells that were there stay to the byte, and new ones look like them."""
    file, content, options, note, pattern = GOOD[name]
    encoding = ENCODINGS.get(name, "utf-8")
    before = write(file, content).decode(encoding)
    code, _, err = run("complete", file, "-o", "out" + file[2:], *QUICK, *options)
    assert code == 0, err
    assert note in err
    assert bool(note) == ("scaledgd: note: " in err)
    with open("out" + file[2:], "rb") as f:
        after = f.read().decode(encoding)
    marks = {"semicolons": ";", "tabs": "\t", "vertical bars": "|", "spaces": " "}
    mark = "\t" if name == "colons for missing" else marks.get(note, ",")
    semicolons = ("decimal commas", "German thousands", "euros", "umlauts", "a line for Excel")
    if name.startswith(semicolons) and '"' not in before:
        mark = ";"
    split = re.compile(rf'{re.escape(mark)}(?=(?:[^"]*"[^"]*")*[^"]*$)')
    old, new = (
        [split.split(line) for line in text.splitlines() if line] for text in (before, after)
    )
    assert [len(row) for row in old] == [len(row) for row in new]
    above = name.startswith(("a title saved", "groups", "units below"))
    filled = []
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        for x, y in zip(a, b, strict=True):
            if x.strip(BLANKS) in EMPTY and i > 2 * above and y != x:
                filled.append(y)
            else:
                assert x == y
    assert len(filled) >= np.isnan(Y).sum() - 6
    for cell in filled:
        assert re.fullmatch(pattern, cell), cell


# name: (file, its content, options, phrases)
BAD = {
    "old Mac line ends": ("in.csv", plain(end="\r"), (), ["carriage returns"]),
    "aligned with spaces": (
        "in.txt", "\n".join("   ".join(r) for r in [list("abc"), *cells(X[:, :3])]) + "\n", (),
        ["runs of spaces", "tr -s"],
    ),
    "an old workbook": ("in.xls", b"\xd0\xcf\x11\xe0", (), ["cannot be read", "as .xlsx"]),
    "a web page": ("in.xlsx", b"<html><table></table></html>", (), ["not an Excel workbook"]),
    "a remark below": (
        "in.csv", plain() + "\nSource: our lab\n", (), ["line 33 has 1 cell", "remove it"]
    ),
    "units in some cells": (
        "in.csv", lines([[f"{i} kg" if i % 3 == 1 else f"{i}", f"{i}"] for i in range(20)]), (),
        ["'1 kg'", "in all of its cells or in none"],
    ),
    "a bracket that is not closed": (
        "in.csv", plain().replace("\n", "\n(3.50,1,2,3,4,5\n", 1), (), ["'(3.50'", "holds numbers"]
    ),
    "a second table": ("in.csv", plain() + plain(), (), ["line 32 repeats the names"]),
    "margins of error": (
        "in.csv", plain(form="{:.1f} ± 0.1"), (), ["± 0.1' in column 's0' is not read as a number"]
    ),
    "thousands as K and M": (
        "in.csv", lines([[c + "KM"[i % 2] for c in r] for i, r in enumerate(cells(X))]), (),
        ["columns 's0', 's1', 's2', 's3' and 2 more", "('K', 'M')", "one unit"],
    ),
    "a date that has no time of day": (
        "in.csv", lines(
            [["2024-03-04", "" if i == 3 else f"{i % 24:02d}:{i:02d}", *r]
             for i, r in enumerate(cells(Y))],
            names=["date", "time", *NAMES],
        ), ("--date", "date"), ["2024-03-04 is repeated", "--date none"],
    ),
    "one row": ("in.csv", "a,b,c\n1,,3\n", (), ["only columns without any value"]),
    "one column": ("in.csv", "a\n1\n\n3\n", (), ["single column"]),
    "only text": ("in.csv", "a,b\nx,y\nu,v\n", (), ["no column holds numbers"]),
    "several units": (
        "in.csv", lines([[f"{i} kg" if i % 2 else f"{i} g", f"{i}"] for i in range(20)]), (),
        ["several units ('g', 'kg')", "one unit"],
    ),
    "a remark in a column": (
        "in.csv", plain().replace("\n", "\nsee note,1,2,3,4,5\n", 1), (),
        ["line 2", "'see note'", "--missing"],
    ),
    "less than": (
        "in.csv", plain().replace("\n", "\n<0.5,1,2,3,4,5\n", 1), (), ["'<0.5'", "--missing '<0.5'"]
    ),
    "ratings": (
        "in.csv", "user,item,rating\n" + "".join(
            f"u{i},m{j},{'' if (i + j) % 5 == 0 else i + j}\n" for i in range(6) for j in range(5)
        ), (), ["looks like a long file", "--long user,item,rating"],
    ),
    "ratings with numbers": (
        "in.csv", "user,item,rating,time\n" + "".join(
            f"{i},{j},{'' if (i + j) % 5 == 0 else i + j},{i * j}\n"
            for i in range(6) for j in range(5)
        ), (), ["--long user,item,rating"],
    ),
    "records of JSON": ("in.csv", '[{"a": 1.5, "b": 2.5}, {"a": null}]', (), ["JSON", ".csv"]),
    "a page that is called a table": ("in.csv", "<html>\n<table>\n", (), ["a web page"]),
    "a number with a flag": (
        "in.csv", plain().replace("\n", "\n8.59*,1,2,3,4,5\n", 1), (),
        ["'8.59*'", "leave only the number"],
    ),
    "a number for missing": (
        "in.csv", plain(data=np.where(np.isnan(Y), -999, Y)), (),
        ["-999 occurs", "use --missing -999"],
    ),
    "a column that numbers the rows, and another": (
        "in.csv", lines([[f"{i}", f"{2 * i + 1}" if i else ""] for i in range(20)]), (),
        ["'s1' is the only column of numbers, besides 's0', which is passed through"],
    ),
    "both marks": ("in.csv", plain(), ("--delimiter", ",", "--decimal", ","), ["same character"]),
    "sheet of a text": ("in.csv", plain(), ("--sheet", "one"), ["workbooks only"]),
    "no such index": ("in.csv", plain(), ("--index", "who"), ["no column 'who'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_refused(run, name):
    """With one line and exit code 2, and nothing is written."""
    if name == "a web page":
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    file, content, options, phrases = BAD[name]
    write(file, content)
    code, out, err = run("complete", file, "-o", "out.csv", *options)
    assert (code, out) == (2, ""), err
    assert err.startswith("scaledgd: error: ")
    assert err.count("\n") == 1
    for phrase in phrases:
        assert phrase in err
    assert os.listdir() == [file]


def test_numbers_that_may_mean_missing_are_named(run):
    gone = np.argwhere(np.isnan(Y))[::2]
    coded = Y.copy()
    coded[*gone.T] = -999
    write("in.csv", plain(data=coded))
    code, _, err = run("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert code == 0
    assert f"warning: -999 occurs {len(gone)} times, far from all other values" in err
    _, _, err = run("complete", "in.csv", "-o", "good.csv", "--missing", "-999", *QUICK)
    assert "-999" not in err
    spread = Y.copy()  # where values are as large, it is one of them
    spread[:4] = [[-999], [-999], [-400], [600]]
    write("spread.csv", plain(data=spread))
    _, _, err = run("complete", "spread.csv", "-o", "spread.out.csv", *QUICK)
    assert "999" not in err


def test_a_delimiter_at_the_end_of_lines_is_not_worth_a_warning(run):
    write("in.csv", plain(end=",\n"))
    code, _, err = run("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert (code, err) == (0, "")


def test_empty_lines_at_the_end_stay_empty(fine):
    write("in.csv", plain(end="\r\n") + ",,,,,\r\n" * 3)
    facts = fine("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert facts["shape"] == [30, 6]
    assert facts["filled"] == np.isnan(Y).sum()
    assert Path("out.csv").read_bytes().endswith(b"\r\n" + b",,,,,\r\n" * 3)


def test_dates_and_times_of_day_are_joined(fine):
    write("in.csv", GOOD["dates and times of day"][1])
    facts = fine("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert (facts["date"], facts["passed_through"]) == ("Date", ["Date", "Time"])


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "spreadsheet"])
def test_numbers_that_count_times_are_read_where_they_are_named(form):
    import pyarrow as pa

    from scaledgd.cli.readers.dates import COUNTS, FORMATS, NUMBERS, read_times

    hours = np.datetime64("2024-03-04T18") + np.arange(30)
    seconds = hours.astype("datetime64[s]").astype(int)
    words = {
        "seconds": seconds,
        "milliseconds": 1000 * seconds,
        "spreadsheet": seconds / 86400 + 25569,  # days since 1899-12-30
    }[form]
    cells = pa.array([str(word) for word in words])
    readings = [read_times(cells, f) for f in (*FORMATS, *NUMBERS, *COUNTS) if f != "ISO8601"]
    good = [times for times in readings if not np.isnat(times).any()]
    assert len(good) == 1, "no other format can read them"
    assert abs(good[0] - hours).max() < np.timedelta64(1, "ms")


def test_words_for_true_and_false_are_filled(fine):
    said = ["", *("Y" if v > 20 else "N" for v in X[1:, 0])]
    rows = [[*r, s] for r, s in zip(cells(X), said, strict=True)]
    write("in.csv", lines(rows, names=[*NAMES, "ok"]))
    facts = fine("complete", "in.csv", "-o", "out.csv", *PLAIN)
    assert facts["filled"] == 1
    assert pd.read_csv("out.csv")["ok"].isin(["Y", "N"]).all()


def test_spaces_in_names_do_not_split_them(fine):
    ratings = [f"u{i},film {j},{(i + j) % 5 + 1}.0" for i in range(9) for j in range(7) if i != j]
    write("in.csv", "\n".join(["user,film,stars", *ratings, "u0,film 0,"]) + "\n")
    facts = fine("complete", "in.csv", "--long", "user,film,stars", "-o", "out.csv", *PLAIN)
    assert (facts["shape"], facts["filled"]) == ([9, 7], 1)


def test_times_in_several_formats_are_named(run):
    write("in.csv", GOOD["dates in several formats"][1])
    _, _, err = run("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert "warning: the column 'time' holds times in several formats" in err


def test_what_was_assumed_can_be_overridden(run, fine):
    write("in.csv", plain(form="{:.1f} kg"))
    facts = fine("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert "--text s0 passes it through as text" in facts["assumed"][0]
    facts = fine("complete", "in.csv", "-o", "text.csv", *QUICK, "--text", "s0")
    assert facts["passed_through"] == ["s0"]
    assert "'s0'" not in facts["assumed"][0]
    write("long.csv", BAD["ratings with numbers"][1])
    assert fine("complete", "long.csv", "-o", "wide.csv", "--long", "none", *PLAIN)["shape"] == [
        30,
        4,
    ]
    facts = fine("complete", "long.csv", "-o", "l.csv", "--long", "user,item,rating", *PLAIN)
    assert facts["shape"] == [6, 5]
    write("thousands.csv", GOOD["thousands"][1])
    code, _, err = run("complete", "thousands.csv", "-o", "t.csv", "--thousands", "none")
    assert code == 2
    assert "no column holds numbers" in err


def test_a_million_rows(fine):
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((1_000_000, 1)), rng.standard_normal((1, 2))
    values = np.round(10 + L @ R, 1)
    holes = rng.random(values.shape) < 0.02
    pd.DataFrame(np.where(holes, np.nan, values), columns=list("ab")).to_csv("in.csv", index=False)
    facts = fine(
        "complete", "in.csv", "-o", "out.csv", "--rank", 1, "--center", "columns", "--scale",
        "none", "--hold-out", 0, "--fit-rows", 2000, "--smooth", "none",
    )  # fmt: skip
    assert facts["shape"] == [1_000_000, 2]
    after = pd.read_csv("out.csv").to_numpy()
    assert np.array_equal(after[~holes], values[~holes])
    assert np.sqrt(np.mean((after - values)[holes] ** 2)) < 0.2


# ---- Excel


@pytest.fixture
def openpyxl():
    return pytest.importorskip("openpyxl", reason="openpyxl is not installed")


def workbook(openpyxl, path="in.xlsx"):
    """A workbook with a title, a table with dates and a flag, and a second sheet."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "readings"
    sheet["B1"] = "Readings of our sensors"
    sheet.append([])
    sheet.append([None, "time", "a", "b", "c", "ok"])
    for i, row in enumerate(Y[:, :3].tolist()):
        when = datetime.datetime(2024, 3, 4) + datetime.timedelta(hours=i)
        values = [None if np.isnan(v) else v for v in row]
        sheet.append([None, when, *values, None if i == 5 else i % 2 == 0])
    sheet["C4"].font = openpyxl.styles.Font(bold=True)
    other = book.create_sheet("notes")
    other["A1"] = "=1+1"
    book.save(path)
    return book


def test_a_workbook_is_copied_with_new_numbers(fine, openpyxl):
    workbook(openpyxl)
    facts = fine("complete", "in.xlsx", "-o", "out.xlsx", *PLAIN)
    assert facts["shape"] == [30, 4]
    assert facts["date"] == "time"
    assert any("sheet 'readings'" in note and "--sheet" in note for note in facts["assumed"])
    assert any("above the table" in note for note in facts["assumed"])
    before, after = (openpyxl.load_workbook(name) for name in ("in.xlsx", "out.xlsx"))
    assert after["notes"]["A1"].value == "=1+1"
    assert after["readings"]["C4"].font.bold
    filled = 0
    for old, new in zip(before["readings"].iter_rows(), after["readings"].iter_rows(), strict=True):
        for a, b in zip(old, new, strict=True):
            if a.value is None and b.value is not None:
                filled += 1
                assert isinstance(b.value, bool if b.column == 6 else float | int)
            else:
                assert a.value == b.value
    assert filled == facts["filled"] == np.isnan(Y[:, :3]).sum() + 1


def test_what_stands_around_the_table_of_a_sheet_stays(fine, openpyxl):
    book = workbook(openpyxl)
    book["readings"].append([])
    book["readings"].append([None, "Source: our lab"])
    book.save("in.xlsx")
    facts = fine("complete", "in.xlsx", "-o", "out.xlsx", *QUICK)
    assert facts["shape"] == [30, 4]
    assert "rows 1 to 2 of the sheet are above the table" in facts["assumed"][0]
    assert "from row 35 on is below the table" in facts["assumed"][1]
    last = openpyxl.load_workbook("out.xlsx")["readings"][35]
    assert [cell.value for cell in last] == [None, "Source: our lab", None, None, None, None]


def test_sheets_are_chosen_and_written_as_other_formats(fine, run, openpyxl):
    book = workbook(openpyxl)
    second = book.create_sheet("second")
    for row in [["x", "y", "z"], [1, 2, 3], [2, None, 6], [3, 6, 9], [4, 8, 12]]:
        second.append(row)
    book.save("in.xlsx")
    facts = fine("complete", "in.xlsx", "--sheet", "second", "-o", "out.csv")
    assert facts["assumed"] == []
    with open("out.csv") as f:
        assert f.read() == "x,y,z\n1,2,3\n2,4,6\n3,6,9\n4,8,12\n"
    fine("complete", "in.xlsx", "--sheet", "second", "-o", "out.parquet")
    assert pd.read_parquet("out.parquet")["y"].tolist() == [2, 4, 6, 8]
    code, _, err = run("complete", "in.xlsx", "--sheet", "third", "-o", "no.csv")
    assert code == 2
    assert "no sheet 'third'; it has 'readings', 'notes', 'second'" in err
    write("text.csv", plain())
    fine("complete", "text.csv", "-o", "new.xlsx", *QUICK)
    made = pd.read_excel("new.xlsx", engine="openpyxl")
    assert list(made.columns) == [f"s{j}" for j in range(6)]
    assert np.array_equal(made.to_numpy()[~np.isnan(Y)], Y[~np.isnan(Y)])
    assert made.notna().all().all()


# ---- values that belong there


def people(n=200, seed=0):
    """A table with a column of every kind, and the truth."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 2)) @ rng.standard_normal((2, 7))
    whole = pd.DataFrame(
        {
            "age": np.rint(40 + 8 * Z[:, 0]).astype(int),
            "stars": np.clip(np.rint(3 + 1.2 * Z[:, 1]), 1, 5).astype(int),
            "income": np.round(np.maximum(0.0, 1.5 * Z[:, 2]), 2),
            "member": Z[:, 3] > 0,
            "height": np.round(1.7 + 0.1 * Z[:, 4], 2),
            "unit": 7,
            "exact": Z[:, 5],
        }
    )
    return whole, whole.astype(object).mask(rng.random(whole.shape) < 0.2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_values_belong_where_they_are(fine, kind):
    _, holes = people()
    if kind == "csv":
        holes.to_csv("in.csv", index=False)
    else:
        types = {"age": "Int64", "stars": "Int64", "unit": "Int64", "member": "boolean"}
        rest = dict.fromkeys(("income", "height", "exact"), float)
        holes.astype(types | rest).to_parquet("in.parquet")
    fine("complete", f"in.{kind}", "-o", f"out.{kind}", *PLAIN)
    after = pd.read_csv("out.csv") if kind == "csv" else pd.read_parquet("out.parquet")
    assert after.notna().all().all()
    for name in ("age", "stars", "unit"):
        assert pd.api.types.is_integer_dtype(after[name]), name
    assert pd.api.types.is_bool_dtype(after["member"])
    assert after["stars"].between(1, 5).all()
    assert (after["unit"] == 7).all()
    assert after["income"].min() >= 0
    for name in ("income", "height"):
        assert (after[name].astype(float).round(2) == after[name]).all()
    fine("complete", f"in.{kind}", "-o", f"raw.{kind}", "--raw", *PLAIN)
    raw = pd.read_csv("raw.csv") if kind == "csv" else pd.read_parquet("raw.parquet")
    gone = holes["age"].isna()
    assert (raw["age"][gone] != np.rint(raw["age"][gone])).all()
    assert (np.rint(raw["age"].astype(float)) == after["age"]).all()


def test_ratings_stay_on_their_scale(fine):
    rng = np.random.default_rng(0)
    i, j = np.nonzero(rng.random((60, 20)) < 0.6)
    stars = np.clip(np.rint(3 + rng.standard_normal(60)[i] + rng.standard_normal(20)[j]), 1, 5)
    frame = pd.DataFrame({"user": i, "item": j, "stars": stars})
    frame.loc[::7, "stars"] = np.nan
    frame.to_csv("in.csv", index=False)
    fine("complete", "in.csv", "--long", "user,item,stars", "-o", "out.csv", *PLAIN)
    filled = pd.read_csv("out.csv")["stars"].to_numpy()[::7]
    assert np.isin(filled, [1, 2, 3, 4, 5]).all()
    # what is asked for is a prediction, to rank items by, and is not rounded
    frame[["user", "item"]].head(50).to_csv("pairs.csv", index=False)
    ask = ("--long", "user,item,stars", "--predict", "pairs.csv")
    fine("complete", "in.csv", *ask, "-o", "p.csv", *PLAIN)
    asked = pd.read_csv("p.csv")["stars"]
    assert asked.between(1, 5).all()
    assert asked.nunique() > 20


# ---- intervals, and what is repaired


def test_intervals_are_in_a_second_file(fine, run):
    truth, holes = table(rows=120, columns=8)
    rng = np.random.default_rng(1)
    noisy = holes + np.round(0.1 * rng.standard_normal(holes.shape), 2)
    frame = pd.DataFrame(noisy, columns=list("abcdefgh"))
    frame.insert(0, "who", [f"p{i}" for i in range(120)])
    frame.to_csv("in.csv", index=False)
    facts = fine(
        "complete", "in.csv", "-o", "out.csv", "--interval", 0.9, "--std", "--index", "who"
    )
    assert facts["intervals"] == "out.interval.csv"
    found = pd.read_csv("out.interval.csv")
    assert list(found.columns) == ["who", "column", "value", "lower", "upper", "std"]
    assert len(found) == facts["filled"]
    assert ((found["lower"] < found["value"]) & (found["value"] < found["upper"])).all()
    assert np.allclose((found["upper"] - found["lower"]) / found["std"], 2 * 1.645, rtol=0.05)
    rows = found["who"].str[1:].astype(int).to_numpy()
    at = rows, found["column"].map("abcdefgh".index).to_numpy()
    inside = (found["lower"] <= truth[at]) & (truth[at] <= found["upper"])
    assert inside.mean() > 0.85
    out = pd.read_csv("out.csv")
    assert np.array_equal(out.to_numpy()[at[0], at[1] + 1].astype(float), found["value"])
    args = ("complete", "in.csv", "-o", "part.csv", "--interval", 0.9)
    code, _, err = run(*args, "--fit-rows", 50)
    assert code == 2
    assert "--fit-rows 120" in err
    assert run(*args[:-1], 90)[0] == 2
    assert run("complete", "in.csv", "-o", "out.csv", "--std")[0] == 2  # it exists
    assert sorted(os.listdir()) == ["in.csv", "out.csv", "out.interval.csv"]


def test_intervals_of_long_files(fine):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((40, 1)) @ rng.standard_normal((1, 20))
    i, j = np.nonzero(rng.random(Z.shape) < 0.8)
    frame = pd.DataFrame({"user": i, "item": j, "v": Z[i, j] + 0.1 * rng.standard_normal(len(i))})
    frame.loc[::9, "v"] = np.nan
    frame.to_csv("in.csv", index=False)
    long = ("--long", "user,item,v")
    fine("complete", "in.csv", *long, "-o", "out.csv", "--interval", 0.9, *PLAIN)
    found = pd.read_csv("out.interval.csv")
    assert list(found.columns) == ["user", "item", "value", "lower", "upper"]
    assert (
        found[["user", "item"]].to_numpy().tolist()
        == frame.loc[::9, ["user", "item"]].to_numpy().tolist()
    )
    assert (found["lower"] < found["upper"]).all()
    pd.DataFrame({"user": [3, 99], "item": [4, 5]}).to_csv("pairs.csv", index=False)
    fine("complete", "in.csv", *long, "--predict", "pairs.csv", "-o", "p.csv", "--std", *PLAIN)
    asked = pd.read_csv("p.interval.csv")
    assert asked["std"].notna().tolist() == [True, False]  # nothing is known of user 99


def test_only_outliers_are_repaired(fine):
    """All other cells stay to the byte, and repaired ones look like them."""
    truth, _ = table(rows=120, columns=8)
    rng = np.random.default_rng(2)
    noisy = np.round(truth + 0.05 * rng.standard_normal(truth.shape), 2)
    wrong = rng.random(truth.shape) < 0.03
    content = plain(data=np.where(wrong, noisy + 30, noisy)).replace("\n", " \n")
    before = write("in.csv", content)
    facts = fine("clean", "in.csv", "-o", "out.csv", "--outliers", "wrong.csv")
    after = Path("out.csv").read_bytes()
    old, new = ([line.split(b",") for line in x.split(b"\n")] for x in (before, after))
    changed = np.array(
        [
            [a != b for a, b in zip(*rows, strict=True)]
            for rows in zip(old[1:-1], new[1:-1], strict=True)
        ]
    )
    assert changed.sum() == facts["outliers"]
    assert changed[wrong].all()
    values = pd.read_csv("out.csv").to_numpy()
    assert np.sqrt(np.mean((values - truth)[wrong] ** 2)) < 0.2
    fine("clean", "in.csv", "-o", "low.csv", "--low-rank")
    low = pd.read_csv("low.csv").to_numpy()
    assert (low != values).mean() > 0.9


# ---- patience


def test_a_fit_may_take_so_long(fine, run):
    write("in.csv", plain())
    limits = ("--max-time", 60, "--tol", 1e-6)
    assert fine("complete", "in.csv", "-o", "out.csv", *limits, *QUICK)["filled"]
    code, _, err = run("complete", "in.csv", "-o", "no.csv", "--max-time", 0)
    assert code == 2
    assert "--max-time" in err


def test_progress_without_a_terminal_is_a_line_from_time_to_time(capsys, clock, monkeypatch):
    from scaledgd.cli.progress import progress_bar

    with progress_bar("reading", 2) as show:
        show(0.1)
        clock.skip(6)
        show(0.25)
        show(0.26)
        clock.skip(6)
        show(0.5)
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "[scaledgd] reading: 25 %, about 18 s left",
        "[scaledgd] reading: 50 %, about 12 s left",
    ]
    with progress_bar("reading", 0) as show:
        clock.skip(6)
        show(0.5)
    assert capsys.readouterr().err == ""


def test_all_columns_are_judged():
    """Also the last one, whose cells are the last of their rows."""
    from scaledgd.cli import fits

    rng = np.random.default_rng(0)
    holes = np.where(rng.random((200, 4)) < 0.2, np.nan, rng.random((200, 4)))
    holes[0, 1:] = np.nan  # a row with a single cell keeps it
    holes[1:, 3] = np.where(rng.random(199) < 0.5, np.nan, holes[1:, 3])
    known = fits.observed(holes)
    hidden = fits._hidden(known, fits.Settings(hold_out=0.3))
    counts = np.bincount(known.coordinates[1][hidden], minlength=4)
    assert counts.min() > 10
    for i in known.coordinates:
        assert np.bincount(i[~hidden]).min() > 0


# ---- files of UCI, as they are published


def air(rows=240, ends=114):
    """AirQualityUCI.csv in small: hourly readings, and where they are lost."""
    rng = np.random.default_rng(0)
    names = (
        "Date;Time;CO(GT);PT08.S1(CO);NMHC(GT);C6H6(GT);PT08.S2(NMHC);NOx(GT);PT08.S3(NOx);"
        "NO2(GT);PT08.S4(NO2);PT08.S5(O3);T;RH;AH;;"
    )
    level = np.array([2.1, 1100, 220, 10, 940, 250, 830, 113, 1450, 1020, 18, 49, 1.0])
    spread = np.array([0.5, 200, 70, 3, 250, 70, 250, 30, 340, 300, 5, 10, 0.3])
    places = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 4]
    day = 2 * np.pi * np.arange(rows) / 24
    both = np.stack([np.sin(day), np.cos(day)], axis=1)
    X = level + spread * (
        both @ rng.uniform(-1, 1, (2, 13)) + 0.1 * rng.standard_normal((rows, 13))
    )
    lost = rng.random(X.shape) < 0.04
    lost[:, 2] = rng.random(rows) < 0.9
    text = [names]
    first = datetime.datetime(2004, 3, 10, 18)
    for i in range(rows):
        when = first + datetime.timedelta(hours=i)
        readings = [
            "-200" if gone else f"{x:.{n}f}".replace(".", ",")
            for x, n, gone in zip(X[i], places, lost[i], strict=True)
        ]
        text.append(";".join([when.strftime("%d/%m/%Y;%H.%M.%S"), *readings, "", ""]))
    return "\r\n".join([*text, *[";" * 16] * ends, ""]), lost


def test_a_number_that_may_mean_missing_is_offered_first(run):
    text, lost = air()
    run()  # its folder
    write("AirQualityUCI.csv", text)
    code, _, err = run("complete", "AirQualityUCI.csv", "-o", "out.csv")
    assert code == 2
    assert f"-200 occurs {lost.sum()} times" in err
    assert err.endswith("use --missing -200\n")


def test_unnamed_columns_without_values_are_no_columns(fine, run):
    text, lost = air()
    run()
    write("in.csv", text)
    options = ("--missing", -200, "--hold-out", 0, "--rank", 2, "--smooth", "none")
    facts = fine("complete", "in.csv", "-o", "out.csv", *options)
    assert facts["shape"] == [240, 13]
    assert facts["missing"] == lost.sum()
    assert facts["date"] == "Date"
    assert facts["left_empty"] == []
    with open("out.csv", newline="") as f:
        filled = f.read()
    for old, new in zip(text.split("\r\n"), filled.split("\r\n"), strict=True):
        for a, b in zip(old.split(";"), new.split(";"), strict=True):
            assert (a == b) == (a != "-200")
    fine("complete", "in.csv", "-o", "out.parquet", *options)
    assert list(pd.read_parquet("out.parquet").columns) == text.split(";;")[0].split(";")


@pytest.mark.parametrize("code", [-200.0, 7777.0])
def test_numbers_that_may_mean_missing(fine, code):
    """Only numbers that are far from all others of a column in which others vary."""
    rng = np.random.default_rng(0)
    T = np.round(20 + rng.standard_normal((60, 4)), 2)
    T[rng.random(T.shape) < 0.1] = np.nan
    T[:12, 1] = code
    T[:, 3] = np.where(np.arange(60) < 20, 0.0, 1.0)  # two values are no code
    T[3, 0] = 5000.0  # once is an error, not a code
    pd.DataFrame(T, columns=list("abcd")).to_csv("in.csv", index=False)
    warnings = fine("complete", "in.csv", "-o", "out.csv", *QUICK)["warnings"]
    (said,) = [text for text in warnings if "--missing" in text]
    assert said == warnings[0]
    assert said.startswith(f"{code:g} occurs 12 times, far from all other values")


def communities(rows=300, columns=60, block=20, seed=0):
    """communities.data in small: no header, codes, a name, and a block that most rows lack."""
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((rows, 4)), rng.standard_normal((4, columns))
    C = np.clip(0.5 + 0.1 * parts[0] @ parts[1] + 0.05 * rng.standard_normal((rows, columns)), 0, 1)
    text = []
    for i in range(rows):
        readings = [f"{x:.2f}" for x in C[i]]
        if i % 6:
            readings[-block:] = ["?"] * block
        state, county = str(rng.integers(1, 57)), str(rng.integers(1, 800))
        text.append(",".join([state, county if i % 2 else "?", f"Town{i}city", *readings]))
    return "\n".join(text) + "\n"


def test_what_is_said_of_a_fit_agrees_with_itself(fine, run):
    run()
    write("communities.data", communities())
    facts = fine("complete", "communities.data", "-o", "out.csv")
    held = facts["held_out"]
    assert facts["rank"] > 0
    assert held["r2"] == pytest.approx(1 - (held["rmse"] / held["rmse_of_column_means"]) ** 2)
    assert not any("auto" in text for text in facts["warnings"])


def test_advice_names_the_options_that_were_given():
    said = 'do not rely on it; set rank and center to "auto"'
    assert reworded(said) == "do not rely on it; leave out --rank and --center"


def test_advice_can_be_pasted_into_a_shell(run):
    run()
    write("two words.csv", "a  b  c\n" + "1  2  3\n" * 5)
    assert "< 'two words.csv' > new.csv" in run("complete", "two words.csv", "-o", "out.csv")[2]
