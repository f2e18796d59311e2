"""Checks of README and docs: commands parse, Python blocks run, links and keys exist."""

import inspect
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from Bio import bgzf

from genomics.finetune.labelled import SHARED_BASES
from genomics.io.fasta import write_fasta
from genomics.io.genome import load_genome
from genomics.io.motifs import HIT_FRACTION
from genomics.io.vcf import read_vcf
from genomics.report import sets
from genomics.report.measures import Measured, MotifTable
from genomics.report.page import About, Curves, numbers
from genomics.sequence.alphabet import MASK_ID
from genomics.variants.effects import refusal
from seqdiff.backbones import Caduceus, Transformer
from seqdiff.cli.app import TRUST_CODE, build_app, main, parse, take_trusted
from seqdiff.cli.app import commands as find_commands
from seqdiff.cli.options import part
from seqdiff.run.config import instantiate, parse_run
from seqdiff.run.sampler_config import build_sampler
from seqdiff.samplers.protocol import named_samplers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
}


def blocks(language: str, text: str) -> list[str]:
    """Code blocks of a language, including indented blocks in tabs."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def commands(text: str) -> list[list[str]]:
    """Every command of a shell block, and every complete inline command of seqdiff."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for block in blocks("sh", text) for line in block.splitlines()]
    lines += [
        code
        for code in re.findall(r"`([^`]+)`", prose)
        if code.startswith(("seqdiff ", "make "))
        and not re.search(r"[A-Z]{3}|\.\.\.", code)
        and not re.fullmatch(r"seqdiff \S+( --trace| trace)?", code)  # the name of a command
    ]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def substituted(text: str) -> list[list[str]]:
    """The commands of a page, with the variables that its shell blocks set."""
    values: dict[str, list[str]] = {}
    found = []
    for words in commands(text):
        name, equals, value = words[0].partition("=")
        if equals and len(words) == 1:
            values[f"${name}"] = shlex.split(value)
        else:
            found.append([part for word in words for part in values.get(word, [word])])
    return found


COMMANDS = [(page, words) for page, text in PAGES.items() for words in substituted(text)]
CONFIGS = ROOT / "configs" / "experiment"
FASTA = CONFIGS / "genomics" / "fasta.yaml"
SHIPPED = [
    FASTA,
    CONFIGS / "genomics" / "design.yaml",
    CONFIGS / "text" / "bytes.yaml",
    CONFIGS / "text" / "wap_block4.yaml",
]
INLINE = [
    (page, shlex.split(code))
    for page, text in PAGES.items()
    for code in re.findall(r"`(--[^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
]
HELD_OUT = [words for _, words in INLINE if words[0].startswith("--data.test_")]


def check(words: list[str]) -> None:
    """Parse a command as its program would, without running it."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    program, *arguments = words
    if program == "seqdiff":
        for option in ("--help", "..."):
            if option in arguments:
                return
        arguments = arguments[: arguments.index("&&")] if "&&" in arguments else arguments
        function, bound = parse(take_trusted(arguments)[1])
        given = bound.arguments
        if function.__name__ == "train" and given.get("words"):
            config, flags = given["words"][0], given["words"][1:]
            if not config.startswith("--"):
                parse_run(Path(config), flags)
        if function.__name__ == "sample":
            run, flags = part("sample", given["words"])
            default = "block" if "block" in str(run) else "first_hitting"
            build_sampler(given.get("sampler", default), flags)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = re.findall(r"\[(\w+)\]", arguments[-1])
        pinned = re.fullmatch(r"[\w-]+==[\d.]+", arguments[-1])
        assert arguments[:2] == ["install", "-e"] or (pinned and len(arguments) == 2), words
        assert set(named) <= set(extras["optional-dependencies"]), words
    elif program == "python":
        assert arguments[0] == "-m" or (ROOT / arguments[0]).is_file(), words
    else:
        assert program in (".", "bash", "docker", "gunzip", "jupyter", "pre-commit"), (
            f"unknown {words}"
        )


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page}: {shlex.join(words)}" for page, words in COMMANDS]
)
def test_commands_are_valid(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    if "rewards.gc_content" in words:
        guide = PAGES["docs/how-to/guide.md"]
        (function,) = re.findall(r"^def gc_content.*?\n\n", guide, re.DOTALL | re.MULTILINE)
        (tmp_path / "rewards.py").write_text(function)
        monkeypatch.syspath_prepend(tmp_path)
    check(words)


@pytest.mark.parametrize(
    "broken",
    [
        "seqdiff train configs/experiment/genomics/fasta.yaml --data.fast genome.fa",
        "seqdiff train configs/no.yaml --output runs/mine",
        "seqdiff sample runs/mine --num 100 --size 1024 --out samples.fa --seed 1",
        "seqdiff fly",
        "PYTHONPATH=. seqdiff sample a --sampler smc --reward nowhere.gc_content",
        "seqdiff sample runs/mine --sampler fly",
        "make coffee",
        "pip install -e .[tpu]",
        "python docs/figures/fly.py",
    ],
)
def test_a_wrong_command_would_be_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twins of the commands above."""
    monkeypatch.chdir(ROOT)
    with pytest.raises((AssertionError, OSError, ValueError)):
        check(shlex.split(broken))


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Options of all commands and samplers, and the keys of the shipped configurations."""
    found = {"--help", TRUST_CODE}
    for name in find_commands():
        app = build_app(find_commands(), name)[name]
        found |= {
            option for argument in app.assemble_argument_collection() for option in argument.names
        }
    for sampler in named_samplers().values():
        fields = inspect.signature(sampler).parameters
        found |= {f"--{field.replace('_', '-')}" for field in fields}
    for config in SHIPPED:
        found |= {f"--{key.replace('init_args.', '')}" for key in parse_run(config).keys()}
    return found


def find_option(page: str, words: list[str], options: set[str]) -> bool:
    """Whether an option in the text exists and, if it has a value, whether a run accepts it."""
    name = words[0]
    if name in options and (len(words) == 1 or not name.startswith("--data.")):
        return True
    if page.startswith("docs/benchmarks"):
        scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
        named = [word.removeprefix("--") for word in words if word.startswith("--")]
        if all(re.search(f'"(--)?{option}"', scripts) for option in named):
            return True
    for config in SHIPPED:
        try:
            parse_run(config, words)
        except ValueError:
            continue
        return True
    return False


@pytest.mark.parametrize(
    ("page", "words"), INLINE, ids=[f"{p}: {shlex.join(w)}" for p, w in INLINE]
)
def test_options_in_prose_exist(
    page: str, words: list[str], options: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert find_option(page, words, options)


@pytest.mark.parametrize("broken", ["--rc-consistant", "--data.tset x", "--preset fly", "--fly 3"])
def test_a_wrong_option_would_be_found(
    broken: str, options: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert not find_option("docs/how-to/dna.md", shlex.split(broken), options)


@pytest.mark.parametrize("flags", HELD_OUT, ids=shlex.join)
def test_a_held_out_test_split_leaves_data_to_train_and_to_validate_on(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped configuration validates, so its validation split must not be empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    bases = np.array(list("ACGT"))[np.random.default_rng(0).integers(0, 4, 300_000)]
    records = ["".join(piece) for piece in np.split(bases, 3)]
    write_fasta("genome.fa", ["chr1", "chr20"], records[:2])
    write_fasta("other.fa", ["chrX"], records[2:])
    data = instantiate(parse_run(FASTA, flags)).data
    assert len(data.dataset("test")) == 98, "100,000 bases, the last window shifted inside"
    rest = 100_000 if "chr20" in flags[-1] else 200_000
    assert abs(len(data.dataset("valid")) * 1024 / rest - 0.05) < 0.02
    assert len(data.dataset("train")) > 300


def test_the_held_out_splits_are_shown() -> None:
    assert len(HELD_OUT) == 2


def test_the_readme_is_short_and_its_links_exist() -> None:
    text = PAGES["README.md"]
    assert len(text.splitlines()) <= 130
    for page in ("README.md", "CONTRIBUTING.md"):
        for path in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
            assert (ROOT / path).exists(), (page, path)


def test_where_things_go_exists() -> None:
    """Folders and files of the table in CONTRIBUTING.md."""
    table = [line for line in PAGES["CONTRIBUTING.md"].splitlines() if line.startswith("| ")]
    named = [code for line in table for code in re.findall(r"`([\w/]+(?:\.\w+)?/?)`", line)]
    assert len(named) > 25
    for path in named:
        assert (ROOT / path).exists(), path


@pytest.fixture
def shown_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small versions of what the Python blocks open: a run, published
    networks, DNA.
    """
    config = tmp_path / "demo.yaml"
    shipped = ROOT / "configs" / "experiment" / "genomics" / "demo.yaml"
    small = {
        "base": str(shipped),
        "data": {"init_args": {"length": 16, "num_train": 32}},
        "trainer": {"max_steps": 1, "enable_progress_bar": False},
    }
    config.write_text(yaml.safe_dump(small))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    assert main(["train", str(config)]) == 0
    hub, words = re.findall(r'from_hub\("([^"]+)"\)', PAGES["docs/how-to/published.md"])
    complement = (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11, 12, 13, 14, 15)
    sizes = {"num_embeddings": 16, "num_logits": 16, "complement": complement}
    (tmp_path / hub).mkdir()
    Caduceus(8, 1, variant="ps", d_state=4, **sizes).to_hub(tmp_path / hub)
    Transformer(8, 1, 2, num_embeddings=50258, num_logits=50257).to_hub(tmp_path / words)
    with bgzf.open(tmp_path / "genome.fa.gz", "wb") as stream:
        stream.write(b">chr1\nACGTTN\n")
    (tmp_path / "promoters.bed").write_text("chr1\t1\t4\tx\t0\t+\nchr1\t1\t4\tx\t0\t-\n")
    return tmp_path


def _run(block: str) -> dict:
    """Run each block separately, with rows of 16 bases instead of longer ones."""
    names: dict = {}
    short = re.sub(r"length=6\d", "length=16", block).replace("(4, 64)", "(4, 16)")
    exec(compile(short, "docs", "exec"), names)
    return names


@pytest.mark.slow
def test_python_blocks_run(shown_folders: Path, capsys) -> None:
    (quick,) = blocks("python", PAGES["README.md"])
    (same,) = blocks("python", PAGES["docs/index.md"])
    page = PAGES["docs/how-to/python.md"]
    api, effects, sampler, likelihood, cached, genome = blocks("python", page)
    tilted, steered = blocks("python", PAGES["docs/how-to/guide.md"])
    (published,) = blocks("python", PAGES["docs/how-to/published.md"])
    for block in (quick, same, api):
        assert "tokenizer" in dir(_run(block)["run"])
    drawn = _run(sampler)
    assert int(drawn["run"].tokenizer.vocab_size) == MASK_ID == 4
    sequence = drawn["run"].tokenizer.decode(drawn["drawn"].tokens[0].numpy())
    assert re.fullmatch("ACGT[ACGT]{8}ACGT", sequence) and 1 <= int(drawn["drawn"].nfe) <= 8
    found = _run(likelihood)["found"]
    assert found.num_tokens == 14 and found.nfe <= 4096
    assert found.standard_error <= 0.05, "what is shown reaches its target"
    found = _run(tilted)
    assert found["gc_content"](found["drawn"].tokens).mean() > 0.55, "0.5 without a reward"
    found = _run(published)
    assert found["logits"].shape == torch.Size([1, 5, 16])
    assert found["word_logits"].shape == torch.Size([1, 3, 50258])
    found = _run(cached)
    assert found["logits"].shape == torch.Size([2, 32, 4]) and found["cache"].length == 12
    assert _run(genome)["sequences"] == ["CGT", "ACG"]
    (shown_folders / "some.fa").write_text(">a\nACGTTGCAACGTTGCA\n")
    _run(effects)
    assert np.load("effects.npz")["effect_0"].shape == (16, 4)
    capsys.readouterr()
    _run(steered)
    rows = re.findall("[ACGT]{16}", capsys.readouterr().out)
    assert len(rows) == 8
    gc = np.mean([base in "CG" for row in rows for base in row])
    assert gc > 0.6, "128 bases of an untrained model have half their bases G or C without"


@pytest.mark.slow
def test_design_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list("ACGT"), 32)) + f"\t{number}" for number in range(120)]
    (tmp_path / "promoters.tsv").write_text("\n".join(["sequence\tlog2_expr", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "configs" / "experiment" / "genomics" / "design.yaml")
    train = ["train", config, "--data.table=promoters.tsv", "--data.signals=[log2_expr]"]
    small = ["--backbone.d_model=8", "--backbone.n_layer=1", "--trainer.max_steps=0"]
    assert main([*train, "--output=runs/promoters", *small]) == 0
    block, rewarded, guided = blocks("python", PAGES["docs/how-to/design.md"])
    names: dict = {}
    exec(compile(block, "design.md", "exec"), names)
    assert [len(names[name]) for name in ("strong", "each", "array", "filled")] == [10, 3, 3, 5]
    assert names["each"] == names["array"] and len(names["scores"]) == 10
    assert all(re.fullmatch("TTGACA[ACGT]{17}TATAAT", text) for text in names["filled"])
    for words in commands(PAGES["docs/how-to/design.md"]):
        if "--part" in words:
            assert main([*words[1:], "--members=1", "--epochs=1"]) == 0
    exec(compile(rewarded, "design.md", "exec"), names)
    gc = np.mean([base in "CG" for design in names["designs"] for base in design])
    assert len(names["designs"]) == 10 and gc > 0.6, "0.5 of an untrained model"
    exec(compile(guided, "design.md", "exec"), names)
    assert names["spread"].shape == (10, 1) and names["drawn"].tokens.shape == (2, 32)
    assert [len(design) for design in names["near"]] == [32] * 10
    assert all(re.fullmatch("TTGACA[ACGT]{17}TATAAT", text) for text in names["high"])


def test_brca1(tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """All SNVs agree with the genome, and perfect scores have an AUROC of 1."""
    to_vcf, compare = blocks("python", PAGES["docs/benchmarks/brca1.md"])
    monkeypatch.chdir(tmp_path)
    table = real_data / "variants" / "brca1_sge_findlay2018_hg38.tsv.gz"
    (tmp_path / table.name).symlink_to(table)
    (tmp_path / "chr17.fa.gz").symlink_to(real_data / "hg38" / "chr17_BRCA1.fa.gz")
    exec(compile(to_vcf, "brca1.md", "exec"), {})
    variants, genome = list(read_vcf("brca1.vcf")), load_genome("chr17.fa.gz")
    assert len(variants) == 3893
    assert not any(refusal(variant, genome, 1024) for variant in variants)
    lines = ["chrom\tpos\tid\tref\talt\tmarginal\tstatus"]
    for v in variants:
        known = -float(v.name.startswith("LOF"))
        lines.append(f"{v.chrom}\t{v.pos}\t{v.name}\t{v.ref}\t{v.alt}\t{known}\tscored")
    (tmp_path / "brca1.tsv").write_text("\n".join(lines) + "\n")
    quick = compare.replace("range(1000)", "range(20)")
    exec(compile(quick, "brca1.md", "exec"), {})
    said = capsys.readouterr().out
    assert "all: 823 LOF, 2821 FUNC; chance 0.500" in said
    assert "masked marginal 1.000 [1.000, 1.000]" in said
    assert "trinucleotide and change 0.671" in said


def test_the_report_page_names_the_keys_of_the_json() -> None:
    table = MotifTable([], {}, {})
    measured = Measured([], {"samples": np.array([1])}, {}, {}, {}, table)
    found = numbers(About({}, True, 5), 0, measured, Curves("test", {}, {}))
    section = PAGES["docs/how-to/report.md"].partition("## The JSON file")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE))
    assert list(rows) == list(found)
    for name in ("about", "motifs", "training"):
        inner = found[name]
        assert isinstance(inner, dict) and all(f"`{key}`" in rows[name] for key in inner)


def test_the_report_page_names_the_limits_of_the_code() -> None:
    page = " ".join(PAGES["docs/how-to/report.md"].split())
    _, bound = parse(["report", "r"])
    bound.apply_defaults()
    for text in (
        f"at least {sets.MIN_SAMPLES} sequences of at least {sets.MIN_LENGTH} bases",
        f"share no {SHARED_BASES} consecutive bases",
        f"(`--markov-order`, default {bound.arguments['markov_order']})",
        f"at least {HIT_FRACTION:.0%} of the motif's best score",
    ):
        assert text in page, text


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(DOCS.glob("figures/*.py")), ids=lambda path: path.stem)
def test_figures_can_be_drawn_again(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script.stem == "chain":  # imported by the other scripts
        return
    monkeypatch.syspath_prepend(str(script.parent))
    names: dict = {"__name__": script.stem, "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), names)
    names["main"](str(tmp_path / "figure.svg"))
    assert (tmp_path / "figure.svg").stat().st_size > 5_000
    assert script.with_suffix(".svg").is_file()


def test_hooks_are_what_ci_runs() -> None:
    """The hooks and CI run the same checks."""
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["entry"] for hook in local["hooks"]}
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert hooks == {line for line in ci if line.startswith("make ")}
