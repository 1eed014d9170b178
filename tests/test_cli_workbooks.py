"""Workbooks: all formats are read, hostile ones are refused, and nothing is lost without a word."""

import base64
import re
import struct
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest

openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
pytest.importorskip("python_calamine", reason="python-calamine is not installed")

QUICK = ("--rank", 1, "--center", "none", "--scale", "none", "--hold-out", 0, "--smooth", "none")

HOURS = [f"2024-03-04 {i:02}:00:00" for i in range(8)]
WHOLE = 1.5 * np.outer(np.arange(1, 9), np.arange(1, 4))
HOLES = ((2, 1), (5, 2))
"""The table of all workbooks: rank one, two cells are empty."""

XLS = (
    "c-rk)O=uHQ5T4y^{x)rz#6)ZgB~)7N-=TUDrAd`)i;!9c{{>B&RYEnDO+DyAtF=c#^dO3tLOoca>ct;wp@IhwLd6"
    "~gL1-1ccoGymv|VRrcViPHG*Anb{lc4lZ{C}4=KXK>?Ua9J_;Gj^3J?VwENE_UEYb;>+-AWCSg&c6HJ>g_nuS#bw"
    "+koIVTbYZH%^*En(tW<;gR$bCBP?4$KWh<^<|XE3StMxkPs+_R+IwVMU59KIjR859+qoZKIE1!Shlg|8p~E}J0l!"
    "{saRLT7Go735^K253&i`BZ9cH31w!zeR`I3lg5K5++tqa9^eU^UmdaoRa6&tjjG|IG1ovpm9!50B<IU~uk<QMo@%"
    "Rh`amq*FhZX_&Ztm^Lh^1dyy#T2HnXh;LMeo9?EY#l=C4d3YPViP4!l@2R`jM<EiBvjsDmw@DxH^E72Vl=RHIh{_"
    "**-Ok4g1q)6kI_GOi4^VGM)5%GWhaNhH~C9Whhfn!FfOL8y`BFyZ`N7JlP#P&YA(f4fH#smVyHfE|Ucsd%4ELlEP"
    "_Vi$<1Ln6--YVU|H`gU`C|kdfIn$Zf82Z5{gA%$SaCSd`z0`Ju0SpH&Zij@4s+tYh{<aO{0-7;5kiOQAje2BAr46"
    "7Jk4Jdc@A!8l(&vaI~$tZ|7xqi>pVF;>7l$ei`Fq!uFgF2997Vl*atNi@b!FWInU%atT7Nd}j#fNKJ(QAcr(y&{g"
    "IB6;?*e-F-<#8y&)l?_K;Vypd#MD3Th30Q|3F=rcQSqCPAy$FMy86J#|jwX@eqA2sU=zjGQMP3!sBX<;Ga4-WQWy"
    "IiM2HpE6mb-H?IEyeibG=Xu1}8I&d&oA*42|ne1{ZVXGq`fSILQnF)QCpkb?-K|br%_VH{0Ht4hnwg^-=o+Y_+Y$"
    "^e7jJS<c0rHe#09qu$>n%NrbNR1ClqS{8Vd{e}z{ELgB$!GZ+~%K>^975QxkjQ2(TP2XvJ*O|w(V0|X}Z?O;h@Yj"
    "!jCwD>ypDLU$Y5lAPyI^t&OSCb+7ZMJlcNKc^{g>kCEqVRoKQ&=-f0k_MTfQw+s{e&j;{3<{e*sP`0^t"
)
"""The table with a title, as Excel 97 stores it."""


def values():
    rows = WHOLE.tolist()
    for i, j in HOLES:
        rows[i][j] = None
    return rows


def cells():
    """The table with a title above it and an empty column before it, by row and column."""
    found = {0: {0: "Our sensors"}, 2: dict(enumerate(["time", "a", "b", "c"], 1))}
    for i, row in enumerate(values()):
        full = {j: value for j, value in enumerate(row, 2) if value is not None}
        found[3 + i] = {1: HOURS[i], **full}
    return found


def xlsx(path, rows, **more):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "readings"
    for i, row in rows.items():
        for j, value in row.items():
            sheet.cell(i + 1, j + 1).value = value
    book.save(path)


def xls(path, rows):
    path.write_bytes(zlib.decompress(base64.b85decode(XLS)))


def ods(path, rows):
    """An OpenDocument sheet, in which gaps are repeated cells."""
    text, row, name = "", 0, "table:table-cell"
    for i, full in rows.items():
        text += f'<table:table-row table:number-rows-repeated="{i - row}"/>' if i > row else ""
        text += "<table:table-row>"
        column, row = 0, i + 1
        for j, value in full.items():
            text += f'<{name} table:number-columns-repeated="{j - column}"/>' if j > column else ""
            column = j + 1
            if isinstance(value, str):
                text += f'<{name} office:value-type="string"><text:p>{value}</text:p></{name}>'
            else:
                text += f'<{name} office:value-type="float" office:value="{value}"/>'
        text += "</table:table-row>"
    spaces = " ".join(
        f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{short}:1.0"'
        for short in ("office", "table", "text")
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("META-INF/manifest.xml", "<manifest/>")
        archive.writestr(
            "content.xml",
            f"<office:document-content {spaces}><office:body><office:spreadsheet>"
            f'<table:table table:name="readings">{text}</table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        )


def xlsb(path, rows):
    """A binary workbook: records of a kind, a size and data."""

    def record(kind, data=b""):
        head = bytes([kind]) if kind < 128 else bytes([kind & 127 | 128, kind >> 7])
        return head + bytes([len(data)]) + data

    def word(text):
        return struct.pack("<I", len(text)) + text.encode("utf-16-le")

    sheet = record(0x81) + record(0x94, bytes(16)) + record(0x91)
    for i, row in rows.items():
        sheet += record(0, struct.pack("<I", i) + bytes(21))
        for j, value in row.items():
            at = struct.pack("<II", j, 0)
            if isinstance(value, str):
                sheet += record(6, at + word(value))
            else:
                sheet += record(5, at + struct.pack("<d", value))
    sheet += record(0x92) + record(0x82)
    listed = record(0x9C, struct.pack("<II", 0, 1) + word("rId1") + word("readings"))
    schemas = "http://schemas.openxmlformats.org"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.bin", sheet)
        archive.writestr(
            "xl/workbook.bin",
            record(0x83) + record(0x8F) + listed + record(0x90) + record(0x84),
        )
        archive.writestr(
            "xl/_rels/workbook.bin.rels",
            f'<Relationships xmlns="{schemas}/package/2006/relationships"><Relationship Id="rId1" '
            f'Type="{schemas}/officeDocument/2006/relationships/worksheet" '
            'Target="worksheets/sheet1.bin"/></Relationships>',
        )


MADE = {"xlsx": xlsx, "xlsm": xlsx, "xls": xls, "ods": ods, "xlsb": xlsb}


@pytest.mark.parametrize("kind", ["xlsm", "xls", "ods", "xlsb"])
def test_workbooks_of_all_formats_are_read(fine, run, tmp_path, kind):
    MADE[kind](tmp_path / f"in.{kind}", cells())
    facts = fine("complete", f"in.{kind}", "-o", "out.xlsx", *QUICK)
    assert facts["shape"] == [8, 3]
    assert facts["date"] == "time"
    assert "rows 1 to 2 of the sheet are above the table" in facts["assumed"][0]
    assert any("new workbook with the table alone" in text for text in facts["warnings"])
    found = pd.read_excel("out.xlsx", engine="openpyxl")
    assert np.allclose(found[["a", "b", "c"]], WHOLE)
    code, _, err = run("complete", f"in.{kind}", "-o", "new.ods", *QUICK)
    assert code == 2
    assert "such workbooks are only read; write .xlsx or .csv" in err
    code, _, err = run("complete", f"in.{kind}", "--sheet", "none", "-o", "no.csv")
    assert "no sheet 'none'; it has 'readings'" in err


def test_long_files_may_be_workbooks(fine, tmp_path):
    lines = [("row", "column", "value")]
    for i, row in enumerate(values()):
        lines += [(f"r{i}", f"c{j}", value) for j, value in enumerate(row)]
    rows = {i: {j: v for j, v in enumerate(line) if v is not None} for i, line in enumerate(lines)}
    ods(tmp_path / "in.ods", rows)
    facts = fine("complete", "in.ods", "--long", "row,column,value", "-o", "out.csv", *QUICK)
    assert facts["missing"] == len(HOLES)


@pytest.mark.parametrize("kind", ["xlsx", "ods", "xlsb"])
def test_a_stray_cell_takes_no_memory(run, tmp_path, kind):
    path = tmp_path / f"in.{kind}"
    MADE[kind](path, {**cells(), 1_048_575: {16_383: 1.0}})
    assert path.stat().st_size < 10_000
    code, _, err = run("complete", path.name, "-o", "out.csv", *QUICK)
    assert code == 2
    if kind == "xlsx":
        assert "would reach to XFD1048576" in err
        assert "of which 35 hold a value" in err
    else:
        assert "if a cell stands far from the table, delete it" in err


def test_remarks_may_be_anywhere(fine, tmp_path):
    xlsx(tmp_path / "in.xlsx", {**cells(), 1_048_575: {16_383: "checked"}})
    assert fine("complete", "in.xlsx", "-o", "out.xlsx", *QUICK)["shape"] == [8, 3]
    sheet = openpyxl.load_workbook("out.xlsx").active
    assert sheet.cell(1_048_576, 16_384).value == "checked"
    assert [sheet.cell(4 + i, 3 + j).value for i, j in HOLES] == [WHOLE[hole] for hole in HOLES]


def rewritten(path, change, **more):
    """Change the parts of a workbook: `change` takes a name and its bytes."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**parts, **more}.items():
            archive.writestr(name, data)


def test_the_size_that_a_workbook_claims_does_not_count(fine, tmp_path):
    xlsx(tmp_path / "in.xlsx", cells())
    wrong = b'<dimension ref="A1:C5"'
    rewritten("in.xlsx", lambda name, data: re.sub(rb'<dimension ref="[A-Z0-9:]+"', wrong, data))
    assert fine("complete", "in.xlsx", "-o", "out.csv", *QUICK)["shape"] == [8, 3]


def test_entities_of_a_workbook_are_refused(run, tmp_path):
    """They could grow a billion times."""
    xlsx(tmp_path / "in.xlsx", cells())
    document = b'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><worksheet'
    rewritten("in.xlsx", lambda name, data: data.replace(b"<worksheet", document, 1))
    code, _, err = run("complete", "in.xlsx", "-o", "out.csv", *QUICK)
    assert code == 2
    assert "in.xlsx is not an Excel workbook, or is damaged (Entities" in err


def test_a_workbook_that_unpacks_to_gigabytes_is_refused(run, tmp_path):
    xlsx(tmp_path / "in.xlsx", cells())
    data = bytearray((tmp_path / "in.xlsx").read_bytes())
    entry = data.index(b"PK\x01\x02")  # of the first part, with its size when unpacked
    data[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFFF0)
    (tmp_path / "in.xlsx").write_bytes(data)
    code, _, err = run("complete", "in.xlsx", "-o", "out.csv", *QUICK)
    assert code == 2
    assert "bytes when unpacked, more than the 2,147,483,648 that are read" in err


SHAPE = (
    b"<twoCellAnchor><from><col>1</col><colOff>0</colOff><row>1</row><rowOff>0</rowOff></from>"
    b"<to><col>3</col><colOff>0</colOff><row>4</row><rowOff>0</rowOff></to>"
    b'<sp macro="" textlink=""><nvSpPr><cNvPr id="9" name="Box"/><cNvSpPr/></nvSpPr><spPr/></sp>'
    b"<clientData/></twoCellAnchor></wsDr>"
)


def decorated():
    """A workbook with a chart, its style, a text box and sparklines."""
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["a", "b", "c"], *values()):
        sheet.append(row)
    chart = openpyxl.chart.LineChart()
    chart.add_data(openpyxl.chart.Reference(sheet, min_col=1, max_col=2, min_row=1, max_row=9))
    sheet.add_chart(chart, "E2")
    book.save("in.xlsx")
    sparklines = b'<extLst><ext uri="{05C60535-1F16-4FD2-B633-F4F36F0B64E0}"/></extLst></worksheet>'

    def change(name, data):
        data = data.replace(b"</wsDr>", SHAPE) if "drawings/drawing" in name else data
        return data.replace(b"</worksheet>", sparklines)

    rewritten("in.xlsx", change, **{"xl/charts/style1.xml": b"<a/>"})


def test_what_a_copy_of_a_workbook_lacks_is_said(fine, run):
    run()  # its folder
    decorated()
    (text,) = fine("complete", "in.xlsx", "-o", "out.xlsx", *QUICK)["warnings"]
    kinds = "shapes (1), styles of charts (1), extensions of sheets (sparkline group)"
    assert text == f"not kept of in.xlsx: {kinds}"
    assert fine("complete", "in.xlsx", "-o", "out.csv", *QUICK)["warnings"] == []
    with open("in.xlsx", "rb") as f:
        before = f.read()
    code, _, err = run("complete", "in.xlsx", "-o", "in.xlsx", *QUICK)
    assert code == 2
    assert "the copy may lack its" in err
    assert "charts (1)" in err
    assert "--force" in err
    with open("in.xlsx", "rb") as f:
        assert f.read() == before
    assert fine("complete", "in.xlsx", "-o", "in.xlsx", "--force", *QUICK)["warnings"] == [text]
