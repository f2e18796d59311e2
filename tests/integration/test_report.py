"""``seqdiff report``: the page, its numbers and its errors."""

import json
import re
import resource
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml

from genomics.data.synthetic import SyntheticDataModule
from genomics.io.fasta import write_fasta
from genomics.report.page import read_curves, spell_estimate
from genomics.sequence.alphabet import decode
from seqdiff.cli.app import main

CONFIGS = Path(__file__).parents[2] / "configs"
SETS = ["samples", "real vs real", "dinucleotide shuffle", "Markov order 5"]
MOTIF = ">MA1.1 FIRST\n10 0 0 5\n0 10 0 5\n0 0 10 5\n0 0 0 5\n"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, its samples, a reference and motifs."""
    folder = tmp_path_factory.mktemp("report")
    small = {
        "base": str(CONFIGS / "experiment" / "genomics" / "demo.yaml"),
        "data": {"init_args": {"length": 32, "num_train": 64, "num_valid": 8, "num_test": 32}},
        "backbone": {"init_args": {"d_model": 16, "n_layer": 1}},
        "trainer": {"max_steps": 2, "enable_progress_bar": False, "log_every_n_steps": 1},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(small))
    run = folder / "run"
    assert main(["train", str(folder / "small.yaml"), "--output", str(run)]) == 0
    draw = ["sample", str(run), "--num=12", "--length=30", "--seed=3"]
    draw += [f"--out={folder / 's.fa'}", f"--trace={folder / 't.npz'}"]
    assert main(draw) == 0
    write_fasta(folder / "g.fa", ["g"], [decode(random_rows(1, 3000)[0])])
    (folder / "m.jaspar").write_text(MOTIF)
    return folder


def random_rows(num: int, length: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 4, (num, length)).astype(np.uint8))


def call(world: Path, out: Path, *more: str, **changed: Path) -> int:
    given = {"reference": world / "g.fa", "samples": world / "s.fa", **changed}
    files = [f"--{name}={path}" for name, path in given.items()]
    return main(["report", str(world / "run"), *files, f"--out={out}", *more])


def test_motifs_beside_the_run_are_used(world: Path, tmp_path: Path) -> None:
    out, beside = tmp_path / "a.html", world / "run" / "motifs.jaspar"
    assert call(world, out) == 0
    assert json.loads(out.with_suffix(".json").read_text())["motifs"] is None
    beside.write_text(MOTIF)
    try:
        assert call(world, out) == 0
    finally:
        beside.unlink()
    assert json.loads(out.with_suffix(".json").read_text())["motifs"]["names"] == ["MA1.1 FIRST"]


class Page(HTMLParser):
    """Collects the links and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.links += [
            v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action")
        ]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_page_and_numbers(world: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "report.html"
    assert call(world, out, f"--motifs={world / 'm.jaspar'}") == 0
    said = f"{out}: 12 samples; the numbers are in {tmp_path}/report.json\n"
    assert capsys.readouterr().out == said
    text = out.read_text()
    page = Page(text)
    assert not page.open, "every element is closed"
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert len(numbers["measures"]) > 15
    for found in numbers["measures"]:
        sets = ["samples", "training rows"] if found["section"] == "Length" else SETS
        assert list(found["values"]) == sets and found["name"] in page.words
        for name, value in found["values"].items():
            shown = spell_estimate(value or 0.0, found["errors"].get(name))
            assert value is None or shown in page.words
    names = {found["name"] for found in numbers["measures"]}
    for k in range(1, 7):
        assert f"{k}-mers, Jensen-Shannon divergence" in names
    for name in ("longest exact match", "20-mers in the training sequence", "distinct sequences"):
        assert name in names
    assert numbers["motifs"]["names"] == ["MA1.1 FIRST"] and "MA1.1 FIRST" in page.words
    assert set(numbers["training"]["floors_bits_per_base"]) >= {"Markov order 0", "Markov order 8"}
    assert "Markov order 8" in page.words and "source on these windows" in page.words
    assert len(numbers["training"]["curves_bits_per_base"]["train"]["bits"]) == 2
    assert numbers["lengths"] == {"samples": {"30": 12}, "training rows": {"32": 64}}
    assert sum(tag == "img" for tag, _ in page.tags) == 7
    assert all(found["alt"] for tag, found in page.tags if tag == "img")


def test_both_files_are_written_or_neither(
    world: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while the page, the longer file, is written."""
    out = tmp_path / "report.html"
    assert call(world, out, f"--trace={world / 't.npz'}") == 0
    other = tmp_path / "other" / "report.html"
    other.parent.mkdir()
    assert call(world, other, f"--trace={world / 't.npz'}", "--seed=1") == 0
    sizes = [other.with_suffix(end).stat().st_size for end in (".json", ".html")]
    assert sizes[0] < sizes[1]
    old = [out.with_suffix(end).read_bytes() for end in (".json", ".html")]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would truncate it
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sum(sizes) // 2, limits[1]))
    try:
        code = call(world, out, f"--trace={world / 't.npz'}", "--seed=1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and f"{out} must be writable" in capsys.readouterr().err
    assert old == [out.with_suffix(end).read_bytes() for end in (".json", ".html")]
    assert sorted(tmp_path.glob("*.*")) == [out, out.with_suffix(".json")]


def test_the_page_needs_no_network_and_no_wide_screen(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert call(world, out, f"--trace={world / 't.npz'}") == 0
    text = out.read_text()
    page = Page(text)
    assert page.links and all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    for outside in ("http:", "https:", "//", "@import", "url("):
        assert outside not in text.replace("data:image/svg+xml;base64", "").split("<body>")[0]
    viewport = [found for tag, found in page.tags if found.get("name") == "viewport"]
    assert viewport[0]["content"] == "width=device-width, initial-scale=1"
    assert " width:" not in text.replace("width: 100%", "").replace("width: 34%", "").replace(
        "(max-width:", ""
    ).replace("max-width:", ""), "no fixed width"
    assert "The first sequence of" in page.words and "Motifs" not in page.words


@pytest.mark.slow
def test_the_same_call_gives_the_same_numbers(world: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert call(world, tmp_path / f"{name}.html", f"--trace={world / 't.npz'}") == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert call(world, tmp_path / "c.html", f"--trace={world / 't.npz'}", "--seed=1") == 0
    assert (tmp_path / "a.json").read_bytes() != (tmp_path / "c.json").read_bytes()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_chromium_shows_it_on_a_phone(world: Path, tmp_path: Path) -> None:
    """The browser measures that nothing is wider than 360 pixels."""
    assert CHROMIUM is not None
    out = tmp_path / "report.html"
    assert call(world, out, f"--motifs={world / 'm.jaspar'}", f"--trace={world / 't.npz'}") == 0
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id=f width=360 height=800 src="{out.as_uri()}"></iframe><p id=r></p><script>'
        "f.onload = () => { const d = f.contentDocument;"
        "r.textContent = 'width ' + d.documentElement.scrollWidth + ' pictures ' + "
        "[...d.images].filter(i => i.naturalWidth > 0).length; }</script>"
    )
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += ["--hide-scrollbars"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "width 360 pictures 7" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("samples", "", "{path}: the FASTA file is empty"),
        ("samples", ">a\nACGT\nACZT\n", "{path}:3: record 'a': 'Z' at offset 6"),
        ("samples", ">a\nACGT\n", "{path}: record 'a' must have at least 20 bases, got 4"),
        ("samples", ">a\n" + "ACGTA" * 5 + "\n", "{path}: a report needs at least 10 sequences"),
        ("reference", ">g\nACGT\nAC*T\n", "{path}:3: record 'g': '*' at offset 6"),
        (
            "reference",
            ">g\n" + "ACGTA" * 50 + "\n",
            "{path}: a reference must have room for twice 12",
        ),
        (
            "reference",
            ">g\nACGT\n",
            "{path}: a reference must have room for twice 12 windows of 30",
        ),
        ("motifs", "", "{path}: the motif file is empty"),
        ("motifs", "\n#\nhello\n", "{path}:3: not a motif file: it starts with 'hello'"),
        ("motifs", ">a\nACGT\n", "{path}:2: must be counts of a base"),
        ("trace", "hello", "{path} must be a trace"),
    ],
)
def test_bad_files(world: Path, tmp_path: Path, capsys, name: str, text: str, message: str) -> None:
    path, out = tmp_path / "bad.txt", tmp_path / "out" / "report.html"
    path.write_text(text)
    out.parent.mkdir()
    assert call(world, out, **{name: path}) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("seqdiff: error: " + message.format(path=path))
    assert not list(out.parent.iterdir())


def test_a_run_on_something_else(world: Path, tmp_path: Path, trained: Path, capsys) -> None:
    files = [f"--reference={world / 'g.fa'}", f"--samples={world / 's.fa'}"]
    assert main(["report", str(trained), *files, f"--out={tmp_path / 'r.html'}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"report.directory must be a run on DNA, got {trained}, whose tokenizer is" in said


def test_bad_arguments(world: Path, tmp_path: Path, capsys) -> None:
    for more, message in (
        ("--markov_order=13", "report.markov_order must be in 0..12, got 13; 5 is usual"),
        ("--seed=-1", "report.seed must be in [0, 2^32)"),
        (f"--trace={tmp_path / 'no.npz'}", "no.npz"),
    ):
        assert call(world, tmp_path / "r.html", more) == 2
        assert message in capsys.readouterr().err
    assert call(world, tmp_path / "r.txt") == 2
    assert "report.out must end in .html" in capsys.readouterr().err
    assert call(world, tmp_path / "no" / "r.html") == 2
    assert "report.out must lie in an existing folder" in capsys.readouterr().err
    page = tmp_path / "s.html"
    shutil.copy(world / "s.fa", page)
    assert call(world, page, samples=page) == 2
    assert "report.out must be another file than --samples" in capsys.readouterr().err
    assert page.read_text() == (world / "s.fa").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [("--num=4", "report.num must be at least 10, got 4"), ("--num=12", "at least 20 bases, got")],
)
def test_samples_that_cannot_be_compared_are_not_drawn(
    world: Path, tmp_path: Path, capsys, more: str, said: str
) -> None:
    """Too few, or from a run of short rows; nothing is left in the run directory."""
    run = shutil.copytree(world / "run", tmp_path / "run")
    if "bases" in said:
        text = re.sub(r"(?m)^( +length:) \d+$", r"\1 16", (run / "run.yaml").read_text())
        (run / "run.yaml").write_text(text)
    before = sorted(run.iterdir())
    assert main(["report", str(run), f"--reference={world / 'g.fa'}", more]) == 2
    assert said in capsys.readouterr().err
    assert sorted(run.iterdir()) == before


def test_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,name,value\n1,train/bits_per_token,2.5\n1,lr,0.1\n2,val/bits_per_token,2\n"
    )
    data = SyntheticDataModule(length=32, num_train=64, num_test=32)
    curves = read_curves(path, data, "test")
    assert curves.bits == {"train": ([1], [2.5]), "val": ([2], [2.0])}
    expected = data.baselines("test")["Markov order 3"].bits_per_token
    assert curves.floors["Markov order 3"] == pytest.approx(expected)
    assert read_curves(tmp_path / "none", data, "test").bits == {}
    path.write_text("step,name,value\n1,train/bits_per_token,x\n")
    with pytest.raises(ValueError, match=r"metrics\.csv:2: must be step,name,value, got"):
        read_curves(path, data, "test")
