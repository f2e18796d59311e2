"""The page of ``seqdiff playground``: its answers, its jobs, its command, and in a browser."""

import json
import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.testclient import TestClient

import seqdiff
from genomics.commands.options import DnaOptions
from seqdiff.cli import extensions
from seqdiff.cli.app import main
from seqdiff.cli.extensions import command_line, find_mutagenesis, find_writer
from seqdiff.data import HubTokenizer
from seqdiff.playground import Hooks, Studio, build_app
from seqdiff.playground.jobs import Jobs
from seqdiff.run import Engine, Run, Shard, trust_options
from tests.hub_models import save_family
from tests.integration.conftest import Entry, install
from tests.integration.test_labelled_run import train, write_data
from tests.integration.toy_domain import write_ring

ROOT = Path(__file__).parents[2]
NAME = "ecoli-promoters"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# As pip installs it from this checkout, whatever was installed before.
MUTAGENESIS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "seqdiff.mutagenesis"
]["genomics"]


def client(run: Path | str, hooks: Hooks) -> TestClient:
    studio = Studio(seqdiff.load(run), str(run), hooks)
    return TestClient(build_app(studio), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def dna() -> TestClient:
    """The page of a model of DNA with a signal."""
    mutate = EntryPoint("genomics", MUTAGENESIS, "seqdiff.mutagenesis").load()
    write = find_writer(Path("a.fa"), NAME)
    return client(NAME, Hooks(write, command_line, [DnaOptions], mutate))


@pytest.fixture(scope="module")
def ring(trained: Path) -> TestClient:
    """The page of a run of a domain that registers little."""
    return client(trained, Hooks(write_ring, command_line))


def events(page: TestClient, what: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Do a job, and return its events."""
    answer = page.post(f"/jobs/{what}", json=body)
    assert "job" in answer.json(), answer.text
    return follow(page, answer.json()["job"])


def follow(page: TestClient, key: str) -> list[dict[str, Any]]:
    text = page.get(f"/jobs/{key}/events").text
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]


def done(page: TestClient, what: str, body: dict[str, Any]) -> dict[str, Any]:
    last = events(page, what, body)[-1]
    assert last["kind"] == "done", last
    return last


def repeat(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command of the page in a folder; return the file that it writes."""
    monkeypatch.chdir(folder)
    before, _, command = command.rpartition(" && ")
    if before:
        subprocess.run(["sh", "-c", before], check=True)
    words = shlex.split(command)
    assert main(words[words.index("sample") :]) == 0
    (out,) = (word.removeprefix("--out=") for word in words if word.startswith("--out="))
    return (folder / out).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "wanted",
    [
        {"num": 2, "length": 9, "seed": 3},
        {
            "template": "> mine\nacgtnn\nRYNNN",
            "options": {"--inner.temperature": "0.5", "--inner.num-steps": "3"},
        },
        {"template": "ACG", "length": 8, "signal": {"log2_expr": -3.0}, "guidance": 2, "seed": 1},
        {"length": 14, "domain": {"motif": ["GATW@2", "CC"], "avoid": ["AAA", "TT"]}, "num": 3},
    ],
    ids=["blank", "template", "prompt", "motifs"],
)
def test_a_film_ends_in_the_sequences_that_the_command_draws_again(
    wanted: dict[str, Any], dna: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *film, last = events(dna, "draw", wanted)
    states: dict[tuple[int, int], int] = {}
    steps = [event for event in film if event["kind"] == "step"]
    assert [event["step"] for event in steps] == list(range(len(steps)))
    for event in steps:
        for row, position, token, percent in event["changes"]:
            assert event["step"] == 0 or 0 <= percent <= 100
            states[row, position] = token
    rows = [
        "".join("ACGTN"[states[key]] for key in sorted(states) if key[0] == row)
        for row in range(wanted.get("num", 4))
    ]
    assert last["sequences"] == rows
    if "template" in wanted:
        pattern = "ACGT..[AG][CT]..." if wanted["template"] != "ACG" else "ACG.{5}"
        assert all(re.fullmatch(pattern, row) for row in rows)
    assert last["seed"] == wanted.get("seed", last["seed"])
    assert repeat(last["command"], tmp_path, monkeypatch) == last["file"]["text"]
    assert last["tsv"].splitlines()[1].split("\t") == ["sample_0", rows[0]]


def test_options_change_what_is_drawn(dna: TestClient) -> None:
    """Else the commands of the last test would be equal without their options."""
    plain = {"num": 2, "length": 10, "seed": 5}
    changes = [
        {},
        {"options": {"--inner.temperature": "0.2"}},
        {"signal": {"log2_expr": 8.0}},
        {"signal": {"log2_expr": 8.0}, "guidance": 4},
        {"domain": {"avoid": ["A"]}},
        {"seed": 6},
    ]
    drawn = [tuple(done(dna, "draw", {**plain, **change})["sequences"]) for change in changes]
    assert len(set(drawn)) == len(changes)


def test_scores_and_effects_are_those_of_the_commands(
    dna: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "GATTACAACGTTTTAACGAT"
    scored = done(dna, "score", {"sequences": [f"> a\n{text}", "ACGT"], "signal": {"log2_expr": 1}})
    wanted = seqdiff.load(NAME).score([text, "ACGT"], signal={"log2_expr": 1.0})
    assert scored["rows"] == [list(wanted.cells(score)) for score in wanted]
    assert scored["tsv"].splitlines()[1].endswith(text)
    monkeypatch.chdir(tmp_path)
    Path("a.fa").write_text(f">a\n{text}\n")
    assert main(["ism", NAME, "--fasta", "a.fa", "--out", "a.npz"]) == 0
    found = done(dna, "mutate", {"sequence": text.lower()})
    with np.load("a.npz") as arrays:
        assert np.allclose(found["effects"], arrays["effect_0"], atol=1e-4)
    assert "".join("ACGT"[i] for i in found["ids"]) == text
    effects = np.array(found["effects"])
    assert (effects[np.arange(20), found["ids"]] == 0).all() and np.abs(effects).max() > 0.1


def test_a_position_is_predicted_from_the_others(dna: TestClient) -> None:
    wanted = seqdiff.load(NAME).fill_probabilities("ACGTACNTTGCA")
    ids = ["ACGT".index(base) for base in "ACGTACGTTGCA"]
    found = dna.post("/predict", json={"tokens": ids, "position": 6}).json()
    assert sorted(found["ids"]) == [0, 1, 2, 3] and sum(found["chances"]) == pytest.approx(1)
    assert found["chances"] == sorted(found["chances"], reverse=True)
    assert np.allclose(wanted.probabilities[0][found["ids"]], found["chances"], atol=1e-6)
    information = 2 + sum(p * math.log2(p) for p in found["chances"])
    assert found["most"] == 2 and found["bits"] == pytest.approx(information)
    given = {"tokens": ids, "position": 6, "signal": {"log2_expr": 8.0}}
    assert dna.post("/predict", json=given).json()["chances"] != found["chances"]


def test_a_run_of_another_domain(ring: TestClient) -> None:
    about = ring.get("/about").json()
    assert about["symbols"] == [*"uvwxyz", "-"] and len(about["colors"]) == 6
    assert about["options"] == [] and not about["mutates"] and about["template"]
    last = done(ring, "draw", {"template": "uW--", "num": 2, "sampler": "ancestral"})
    suffix = last["file"]["name"]
    assert suffix == "samples.txt" and all(text[0] == "u" for text in last["sequences"])
    assert "at most 12 tokens" in events(ring, "draw", {"length": 13})[-1]["error"]
    assert (
        "mutagenesis must be" in ring.post("/jobs/mutate", json={"sequence": "uv"}).json()["error"]
    )


def test_a_hub_folder_continues_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_family("bert", tmp_path / "bert")
    write = find_writer(Path("a.txt"), folder)
    page = client(folder, Hooks(write, command_line))
    last = done(page, "draw", {"template": "the dog", "length": 6, "num": 2})
    encode = HubTokenizer(str(folder)).encode  # a suffix may follow "dog" without a space
    assert all(
        encode(text)[:2].tolist() == encode("the dog").tolist() for text in last["sequences"]
    )
    assert repeat(last["command"], tmp_path, monkeypatch) == last["file"]["text"]


@pytest.mark.parametrize(
    ("flags", "predicts", "template", "guidance"),
    [
        (["--preset=mdlm"], True, "ACGNNNNNRY", 2),
        (["--preset=udlm"], False, "ACGNNNNNRY", 2),
        (["--preset=plaid"], False, "ACGNNNNNRY", 1),
        (["--preset=ar", "--backbone=AutoregressiveMamba"], True, "ACG", 2),
    ],
    ids=["masked", "uniform", "gaussian", "autoregressive"],
)
def test_other_diffusions_with_labels(
    flags: list[str],
    predicts: bool,
    template: str,
    guidance: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    data = [*write_data(tmp_path), "--data.labels=[rich, poor]"]
    assert train(tmp_path / "run", "--trainer.max_steps=2", *flags, *data) == 0
    write = find_writer(Path("a.fa"), tmp_path / "run")
    page = client(tmp_path / "run", Hooks(write, command_line, [DnaOptions]))
    about = page.get("/about").json()
    assert about["labels"] == ["rich", "poor"] and about["predicts"] == predicts
    wanted = {"template": template, "length": 10, "num": 2, "seed": 1, "label": "rich"}
    *film, last = events(page, "draw", {**wanted, "guidance": guidance})
    assert last["kind"] == "done", last
    steps = [event["step"] for event in film if event["kind"] == "step"]
    assert steps == sorted(set(steps)) and steps[0] == 0 and len(steps) > 3
    pattern = "ACG.{5}[AG][CT]" if "N" in template else "ACG.{7}"
    assert all(re.fullmatch(pattern, text) for text in last["sequences"])
    assert f"--label=rich --guidance={guidance}" in last["command"]
    assert repeat(last["command"], tmp_path, monkeypatch) == last["file"]["text"]
    found = done(page, "score", {"sequences": last["sequences"], "label": "rich"})
    scores = seqdiff.load(tmp_path / "run").score(last["sequences"], label="rich")
    assert found["rows"] == [list(scores.cells(score)) for score in scores]
    asked = page.post("/predict", json={"tokens": [0, 1, 2], "position": 1, "label": "poor"})
    assert ("ids" in asked.json()) == predicts, asked.json()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("jobs/draw", [], "draw must be a JSON object, got []"),
        ("jobs/draw", {"device": "cuda"}, "draw must have keys of"),
        ("jobs/draw", {"num": "4"}, "draw.num must be of type int, got '4'"),
        ("jobs/draw", {"num": True}, "draw.num must be of type int, got True"),
        ("jobs/draw", {"num": 0}, "number must be"),
        ("jobs/draw", {"num": 17}, "number must be at most 16, got 17"),
        ("jobs/draw", {"length": 0}, "length must be"),
        ("jobs/draw", {"length": 5000}, "must have at most 16,384 tokens together, got 20,000"),
        ("jobs/draw", {"seed": -1}, "seed must be"),
        ("jobs/draw", {"sampler": "os.path"}, "sampler must be one of block, got 'os.path'"),
        ("jobs/draw", {"sampler": "first_hitting"}, "sampler must be one of block"),
        ("jobs/draw", {"options": {"--reward": "os.system"}}, "must have an option --reward"),
        ("jobs/draw", {"options": {"--inner.top-k": "shutil.rmtree"}}, "must be a number, got"),
        ("jobs/draw", {"options": {"--inner.temperature": "0"}}, "temperature must be above 0"),
        ("jobs/draw", {"template": "ACGE"}, "'E' at offset 3"),
        ("jobs/draw", {"template": "ACGT", "length": 4}, "template must have something to fill"),
        ("jobs/draw", {"signal": {"speed": 1}}, "must name signals of the run (log2_expr)"),
        ("jobs/draw", {"domain": {"colour": True}}, "draw.domain must hold options"),
        ("jobs/draw", {"domain": {"motif": ["A"]}, "template": "NN"}, "motif must be left out"),
        ("jobs/score", {}, "score.sequences must be given"),
        ("jobs/score", {"sequences": [" "]}, "must not be empty"),
        ("jobs/score", {"sequences": ["E"]}, "is not DNA"),
        ("jobs/mutate", {"sequence": ""}, "must have 1 to 16,384 tokens, got 0"),
        ("jobs/print", {}, "a job must be one of draw, score, mutate, got 'print'"),
        ("jobs/none/stop", {}, "playground has no job 'none'"),
        ("predict", {"tokens": [0, 9], "position": 0}, "predict.tokens must be ids in 0..4"),
        ("predict", {"tokens": [0], "position": 1}, "predict.tokens must be ids in 0..4"),
    ],
)
def test_unfit_requests_are_answered_in_one_line(
    path: str, body: Any, message: str, dna: TestClient
) -> None:
    before = trust_options()
    answer = dna.post(f"/{path}", json=body)
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"] and trust_options() == before


@pytest.mark.parametrize(
    ("what", "body", "message"),
    [
        ("draw", {"label": "promoter"}, "must be left out for a run without labels"),
        ("draw", {"guidance": 2}, "must come with a label or a signal"),
        ("draw", {"domain": {"rc_consistent": True}}, "must be left out for a run of block"),
        ("score", {"sequences": ["NN"]}, "must hold a known symbol"),
        ("mutate", {"sequence": "NN"}, "must have a known base"),
    ],
)
def test_jobs_that_do_not_fit_the_run_end_in_one_line(
    what: str, body: dict[str, Any], message: str, dna: TestClient
) -> None:
    (last,) = events(dna, what, body)
    assert last["kind"] == "error" and message in last["error"] and "\n" not in last["error"]


def test_other_sites_and_other_machines_are_kept_out(ring: TestClient) -> None:
    page = ring.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(
        r"(src|href)=|@import|https?://|\burl\(",
        page.text.replace('<link rel="icon" href="data:,">', ""),
    )
    assert ring.get("/", headers={"host": "evil.example"}).status_code == 400
    form = ring.post("/jobs/draw", content="{}", headers={"content-type": "text/plain"})
    assert "content type application/json" in form.json()["error"]
    assert "at most 1,000,000 bytes" in ring.post("/predict", json={"a": "x" * 10**6}).text


def test_an_endless_job_lets_others_take_turns_until_it_is_stopped(trained: Path) -> None:
    def forever(run: Run, content: object, progress: Callable[[float], object]) -> dict:
        while True:
            progress(0.5)

    def mutate(run: Run, sequence: str, engine: Engine) -> np.ndarray:
        return next(iter(engine.map("forever", forever, run, [Shard(1, None)], 1)))["effects"]

    with client(trained, Hooks(write_ring, command_line, mutate=mutate)) as ring:
        key = ring.post("/jobs/mutate", json={"sequence": "uvw"}).json()["job"]
        assert done(ring, "draw", {"length": 6, "num": 1, "seed": 0})["sequences"]
        assert ring.post("/predict", json={"tokens": [0, 6], "position": 1}).json()["ids"]
        assert ring.post(f"/jobs/{key}/stop", json={}).json() == {}
        assert follow(ring, key) == [{"kind": "progress", "percent": 50}, {"kind": "stopped"}]
    assert "has no job" in ring.get(f"/jobs/{key}/events").json()["error"], "read to the end"


def test_turns_are_taken_in_order_and_jobs_are_bounded() -> None:
    jobs, seen = Jobs(), []

    def work(name: str) -> Callable[..., dict[str, Any]]:
        def count(job: Any) -> dict[str, Any]:
            for _ in range(5):
                seen.append(name)
                job.step()
            return {}

        return count

    with jobs.turns:  # until all are waiting
        started = [jobs.start(work(name)) for name in "abc"]
        time.sleep(0.2)
    jobs.wait()
    assert all(job.finished for job in started)
    assert "".join(seen) == "abc" * 5
    with jobs.turns:
        for _ in range(16):
            jobs.start(work("x"))
        with pytest.raises(ValueError, match="at most 16 jobs at a time"):
            jobs.start(work("x"))
        jobs.stop()
    jobs.wait()
    assert "x" not in seen[15 + 16 :], "each stops after its first step"


def test_an_internal_error_ends_a_job_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs()
    job = jobs.start(lambda job: {"a": [][0]})
    jobs.wait()
    assert job.events == [{"kind": "error", "error": "list index out of range"}]
    assert "Traceback" in capsys.readouterr().err
    with jobs.turns:
        pass  # the turn was given back


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def serve(port: int, monkeypatch: pytest.MonkeyPatch, capsys) -> Iterator[Callable[[str], str]]:
    """Start the command in a thread; returns the address."""
    servers: list[uvicorn.Server] = []

    class Server(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Server)
    entry, others = EntryPoint("genomics", MUTAGENESIS, "seqdiff.mutagenesis"), entry_points
    monkeypatch.setattr(
        extensions,
        "entry_points",
        lambda group: [entry] if group == "seqdiff.mutagenesis" else others(group=group),
    )
    codes: list[int] = []

    def start(run: str) -> str:
        words = ["playground", run, "--port", str(port)]
        thread = threading.Thread(target=lambda: codes.append(main(words)))
        thread.start()
        threads.append(thread)
        while thread.is_alive() and not (servers and servers[0].started):
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    threads: list[threading.Thread] = []
    yield start
    for server in servers:
        server.should_exit = True
    for thread in threads:
        thread.join()
    assert codes == [0]


def test_the_command_serves_the_page_and_takes_its_port_alone(
    trained: Path, port: int, serve, fails: Callable, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    install(monkeypatch, {"seqdiff.writers": [Entry("txt", write_ring)]})
    address = serve(str(trained))
    assert f"the page is at {address}" in capsys.readouterr().err
    with urllib.request.urlopen(f"{address}/about") as answer:
        assert json.load(answer)["name"] == str(trained)
    line = fails(["playground", "no-such-run", "--port", str(port)])
    assert line == (
        f"seqdiff: error: playground.port must be a free port, got {port} (Address already in "
        f"use); choose another, for example --port {port + 1}"
    )


def test_the_command_fails_in_one_line(
    tmp_path: Path, port: int, fails: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in (str(tmp_path), "no such run"):
        line = fails(["playground", run, "--port", str(port)])
        assert "a run directory must hold run.yaml" in line
    assert "must be a free port, got 70000" in fails(["playground", NAME, "--port", "70000"])
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = fails(["playground", NAME])
    assert "playground must have the package uvicorn" in line and "'.[playground]'" in line


def test_the_installed_mutagenesis_is_that_of_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("genomics", MUTAGENESIS, "seqdiff.mutagenesis")
    monkeypatch.setattr(extensions, "entry_points", lambda group: [entry])
    found = find_mutagenesis(NAME)
    assert found is not None
    assert found(seqdiff.load(NAME), "ACGT", Engine()).shape == (4, 4)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_in_a_browser_by_keyboard_alone(serve: Callable[[str], str], tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    address = serve(NAME)
    said: list[str] = []
    asked: set[str] = set()
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.partition("?")[0]))
        page.goto(address)
        page.wait_for_selector("#sampler option", state="attached")

        def tab_to(selector: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.locator(f"{selector}:focus").count():
                    return
            raise AssertionError(f"the Tab key does not get to {selector}")

        tab_to("#template")
        page.keyboard.type("GATTACANNNNRYCCC")
        tab_to("#num")
        page.keyboard.press("Control+a")
        page.keyboard.type("2")
        tab_to("#seed")
        page.keyboard.type("1")
        tab_to("#draw")
        page.keyboard.press("Enter")
        page.wait_for_selector(".row:first-child span:nth-child(8):not(.mask)")  # it appears
        page.wait_for_selector("#keep:not([hidden])")
        page.wait_for_selector("#draw:focus")  # the focus was not lost
        api.expect(page.locator("#step-text")).to_have_text("6 of 6")
        shown = page.locator(".row").all_inner_texts()
        assert all(re.fullmatch("GATTACA[ACGT]{4}[AG][CT]CCC", row) for row in shown), shown
        assert page.locator(".row:first-child .given").count() == 10
        strengths = page.locator(".row:first-child span:not(.given)").evaluate_all(
            "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
        )
        assert len(set(strengths)) > 2, "bases differ in colour, probabilities in opacity"
        tab_to(".row")
        for key in ("ArrowRight", "End", "ArrowLeft"):
            page.keyboard.press(key)
        api.expect(page.locator("#place")).to_contain_text("Sequence 0, position 14 (from 0)")
        assert page.locator("#bars code").count() == 4
        page.wait_for_selector(
            "#logo text:nth-of-type(2)", state="attached"
        )  # the first is below it
        heights = page.locator("#logo text[transform]").evaluate_all(
            "letters => letters.map(letter => letter.getBoundingClientRect().height)"
        )
        assert heights == sorted(heights), "the most likely base is at the top, and the highest"
        api.expect(page.locator("#logo text").first).to_have_text(re.compile(r"\d\.\d\d of 2 bits"))
        tab_to("#file")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        saved = tmp_path / download.value.suggested_filename
        download.value.save_as(saved)
        assert saved.name == "samples.fa"
        assert saved.read_text() == f">sample_0\n{shown[0]}\n>sample_1\n{shown[1]}\n"
        assert "--infill=template.fa" in page.inner_text("#command")
        for button, result in (("#score", "#scores tr:nth-child(3)"), ("#mutate", "#heat td")):
            tab_to(button)
            page.keyboard.press("Enter")
            page.wait_for_selector(result, state="attached")
        assert page.locator("#heat tr").count() == 5 and page.locator("#history li").count() == 1
        for selector, text in (("#signal-0", "2.5"), ("#guidance", "3"), ("#first input", "0.5")):
            tab_to(selector)
            page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_selector("#history li:nth-child(2)")
        api.expect(page.locator("#status")).to_have_text("done")
        command = page.inner_text("#command")
        for flag in ("--signal=log2_expr=2.5", "--guidance=3", "temperature=0.5"):
            assert flag in command
        assert page.locator(".row").all_inner_texts() != shown
        tab_to("#history li:last-child button")
        page.keyboard.press("Enter")
        api.expect(page.locator("#step-text")).to_have_text("6 of 6")
        assert page.locator(".row").all_inner_texts() == shown
        assert "--guidance" not in page.inner_text("#command")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cut = page.locator("button:visible, input:visible, select:visible").evaluate_all(
                "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).length"
            )
            assert cut == 0
        tab_to("#template")
        page.keyboard.press("Control+a")
        page.keyboard.type("GATTACE")
        tab_to("#num")
        page.keyboard.press("Enter")
        api.expect(page.locator("#error")).to_contain_text("'E' at offset 6")
        browser.close()
    assert all(url.startswith(f"{address}/") or url.startswith("blob:") for url in asked)
    assert said == []
