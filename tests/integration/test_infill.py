"""``seqdiff sample --infill`` and ``--motif`` from the command line, with a table as model."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from genomics.io.fasta import read_templates
from seqdiff.cli.app import main
from seqdiff.data.tokenizer import ConstraintTokenizer, StrandTokenizer
from seqdiff.run import load
from seqdiff.types import Inputs
from tests import distributions
from tests.enumeration import Distribution, Tokens
from tests.exact.test_conjoining import DNA, other_strand
from tests.exact.test_templates import restricted
from tests.integration.toy_domain import RingTokenizer, ToyNet
from tests.oracles import TableBackbone
from tests.statistics import FALSE_ALARM, pearson, power

LENGTH, DRAWS = 3, 4000


class TableNet(TableBackbone):
    """Arbitrary distributions of the bases of every row of three, by the row only."""

    def __init__(self, *, num_embeddings: int, num_logits: int) -> None:
        super().__init__(num_logits)
        generator = torch.Generator().manual_seed(1)
        self.base = num_embeddings
        shape = (num_embeddings**LENGTH, LENGTH, num_logits)
        self.table = nn.Parameter(torch.randn(shape, generator=generator))

    def logits(self, inputs: Inputs) -> Tensor:
        powers = self.base ** torch.arange(LENGTH - 1, -1, -1)
        return self.table[(inputs.tokens * powers).sum(dim=-1)]


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    config = {
        "base": str(Path(__file__).parents[2] / "configs/base.yaml"),
        "output": str(folder / "run"),
        "data": {
            "class_path": "genomics.data.SyntheticDataModule",
            "init_args": {"length": LENGTH, "num_train": 32},
        },
        "backbone": {"class_path": f"{__name__}.TableNet"},
        "trainer": {"max_steps": 1, "enable_progress_bar": False, "val_check_interval": None},
    }
    (folder / "table.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(folder / "table.yaml")]) == 0
    return folder / "run"


def sample(run: Path, out: Path, *flags: str, num: int = DRAWS) -> dict[str, str]:
    command = ["sample", str(run), f"--num={num}", f"--out={out}", "--seed=4", *flags]
    assert main(command) == 0
    return dict(read_templates(out))


def follows(drawn: list[str], right: Distribution, wrong: Distribution) -> None:
    """The samples fit: false-alarm rate 1e-6, with a power above .999 against a wrong
    distribution.
    """
    rows = [x for x, chance in right.items() if chance > 0]
    counts = Counter(tuple(map("ACGT".index, x)) for x in drawn)
    assert set(counts) <= set(rows), "nothing else is ever drawn"
    distribution = torch.tensor([right[x] for x in rows], dtype=torch.float64)
    statistic, threshold = pearson(torch.tensor([counts[x] for x in rows]), distribution)
    assert statistic < threshold, f"at a false-alarm rate of {FALSE_ALARM}"
    other = torch.tensor([wrong.get(x, 0.0) for x in rows], dtype=torch.float64)
    assert power(other / other.sum(), distribution, len(drawn)) > 0.999


def exact(run: Path, pattern: str) -> Distribution:
    """The distribution of the first-hitting sampler within a pattern."""
    trained = load(run)
    allowed = torch.from_numpy(trained.tokenizer.allowed(pattern))
    table = distributions.table(trained.denoiser, 4, LENGTH, restricted(allowed))
    rows = allowed.double()
    start = torch.where(rows.sum(dim=1) == 1, rows.argmax(dim=1), 4)
    with torch.no_grad():
        return distributions.random_order(distributions.as_tokens(start), table, 4)


def test_infilled_sequences_have_the_exact_distribution(table_run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.fa").write_text(">one\nRNT\n>full\ngat\n>two x\nany\n")
    drawn = sample(table_run, tmp_path / "x.fa", f"--infill={tmp_path / 't.fa'}")
    assert list(drawn) == [f"{name}_{i}" for name in ("one", "full", "two") for i in range(DRAWS)]
    parts = {name: [s for n, s in drawn.items() if n.startswith(name)] for name in ("one", "two")}
    free = exact(table_run, "NNN")
    follows(parts["one"], exact(table_run, "RNT"), free)
    follows(parts["two"], exact(table_run, "ANY"), free)
    assert {s for n, s in drawn.items() if n.startswith("full")} == {"GAT"}


def test_the_batch_size_and_the_packing_of_the_file_change_nothing(
    table_run: Path, tmp_path: Path
) -> None:
    text = b">a\nRNT\n>b\nGAT\n>c\nNNN\n"
    (tmp_path / "t.fasta").write_bytes(text)
    (tmp_path / "t.fa.gz").write_bytes(gzip.compress(text))
    out = tmp_path / "x.fa"
    whole = sample(table_run, out, f"--infill={tmp_path / 't.fasta'}", num=7)
    again = sample(table_run, out, f"--infill={tmp_path / 't.fa.gz'}", "--batch_size=2", num=7)
    assert whole == again and len(set(whole.values())) > 6


def test_both_strands_are_equally_likely(table_run: Path, tmp_path: Path) -> None:
    drawn = sample(table_run, tmp_path / "x.fa", f"--length={LENGTH}", "--rc-consistent")
    alone = exact(table_run, "NNN")
    trained = load(table_run)
    table = distributions.table(trained.denoiser, 4, LENGTH)
    mean = {
        x: _mean(distribution, table[other_strand(x, DNA)]) for x, distribution in table.items()
    }
    right = distributions.random_order((4,) * LENGTH, mean, 4)
    for x, chance in right.items():
        assert right[other_strand(x, DNA)] == pytest.approx(chance, abs=1e-7)
    # Rare sequences are combined, so that each cell expects at least 20.
    common = {x for x in right if min(right[x], right[other_strand(x, DNA)]) * DRAWS > 21}
    rest: Tokens = (-1,)

    def merged(distribution: Distribution) -> Distribution:
        kept = {x: chance for x, chance in distribution.items() if x in common}
        return {**kept, rest: 1 - sum(kept.values())}

    names = {"".join("ACGT"[i] for i in x): x for x in common}
    counts = Counter(names.get(x, rest) for x in drawn.values())
    distribution = torch.tensor(list(merged(right).values()), dtype=torch.float64)
    statistic, threshold = pearson(torch.tensor([counts[x] for x in merged(right)]), distribution)
    assert statistic < threshold, f"at a false-alarm rate of {FALSE_ALARM}"
    wrong = torch.tensor([merged(alone)[x] for x in merged(right)], dtype=torch.float64)
    assert power(wrong, distribution, DRAWS) > 0.999


def _mean(straight: list[list[float]], back: list[list[float]]) -> list[list[float]]:
    """Mean of a prediction and of the other strand's prediction, read on this strand."""
    return [
        [(p + back[LENGTH - 1 - i][DNA[letter]]) / 2 for letter, p in enumerate(distribution)]
        for i, distribution in enumerate(straight)
    ]


@pytest.mark.slow
def test_motifs_stand_where_they_should(table_run: Path, tmp_path: Path) -> None:
    """A degenerate motif of one letter occurs at each of two positions half of the time."""
    drawn = sample(table_run, tmp_path / "x.fa", "--length=3", "--motif=R@1", "--motif=C")
    left, right = exact(table_run, "CRN"), exact(table_run, "NRC")
    both = {x: (left.get(x, 0.0) + right.get(x, 0.0)) / 2 for x in {*left, *right}}
    follows(list(drawn.values()), both, left)
    assert drawn == sample(
        table_run, tmp_path / "x.fa", "--length=3", "--motif=r@1", "--motif=c", "--batch-size=9"
    )


# Another domain


def ring(run: Path, out: Path, *flags: str) -> list[str]:
    command = ["sample", str(run), "--num=4", "--seed=1", f"--out={out}", *flags]
    assert main(command) == 0
    return out.read_text().split()[1::2]


@pytest.mark.usefixtures("toy_writer")
def test_a_domain_of_its_own_has_templates_and_motifs(trained: Path, tmp_path: Path) -> None:
    assert isinstance(RingTokenizer(), ConstraintTokenizer)
    assert not isinstance(RingTokenizer(), StrandTokenizer)
    (tmp_path / "t.ring").write_text("a uU-Zw\nb vwx\nc ------------\n")
    drawn = ring(trained, tmp_path / "x.ring", f"--infill={tmp_path / 't.ring'}")
    assert (tmp_path / "x.ring").read_text().split()[::2][3:6] == ["a_3", "b_0", "b_1"]
    for s in drawn[:4]:
        assert s[0] == "u" and s[1] in "uv" and s[3] in "zu" and s[4] == "w" and len(s) == 5
    assert drawn[4:8] == ["vwx"] * 4 and all(len(s) == 12 for s in drawn[8:])
    placed = ring(trained, tmp_path / "x.ring", "--length=9", "--motif=uUz@2", "--motif=xx")
    assert all(s[2] == "u" and s[3] in "uv" and s[4] == "z" and "xx" in s for s in placed)


@pytest.mark.usefixtures("toy_writer")
def test_a_full_template_needs_no_network(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self, inputs, where=None):
        raise AssertionError("the network was called")

    monkeypatch.setattr(ToyNet, "forward", forward)
    (tmp_path / "t.ring").write_text("a uvw\n")
    assert ring(trained, tmp_path / "x.ring", f"--infill={tmp_path / 't.ring'}") == ["uvw"] * 4


# Errors: in one line, before the network is called, and without output files


@pytest.fixture
def refuses(trained: Path, tmp_path: Path, fails, toy_writer, monkeypatch: pytest.MonkeyPatch):
    def forward(self, inputs, where=None):
        raise AssertionError("the network was called")

    monkeypatch.setattr(ToyNet, "forward", forward)
    monkeypatch.chdir(tmp_path)

    def check(said: str, *flags: str, template: str | None = None) -> None:
        if template is not None:
            Path("t.ring").write_text(template)
        num = [] if "--num=0" in flags else ["--num=1"]
        command = ["sample", str(trained), *num, "--seed=1", "--out=x.ring", *flags]
        assert said in fails(command)
        assert not Path("x.ring").exists()

    return check


INFILL = "--infill=t.ring"


@pytest.mark.parametrize(
    ("flags", "template", "said"),
    [
        ([INFILL], None, "sample.infill must be an existing file, got t.ring"),
        (["--infill=t.fa"], None, "sample.infill must end in one of .ring, got t.fa; rename it"),
        ([INFILL, "--length=5"], "a -", "sample.length must be left out with --infill, got 5"),
        ([INFILL, "--motif=u"], "a -", "sample.motif must be left out with --infill"),
        ([INFILL], "", "sample.infill must hold a record, got none"),
        ([INFILL], "a -\na u\n", "must hold each name once, got two records 'a'"),
        ([INFILL], "a -\nb u?\n", "record 'b': a ring must hold uvwxyz, capitals or -, got '?'"),
        ([INFILL], f"a -\nb {'-' * 13}\n", "record 'b' must be at most 12 tokens, the context"),
        ([INFILL], f"a {'u' * 13}\n", "got 13; shorten it, add --extrapolate, or slide a window"),
        (["--length=13"], None, "sample.length must be at most 12 tokens, the context that"),
        (
            ["--length=20", "--sampler=semi-autoregressive", "--window=13", "--stride=1"],
            None,
            "or slide a window: --sampler semi_autoregressive --window 12 --stride 6",
        ),
        (["--length=9", "--motif=uvw@7"], None, "motif uvw@7 must end within length 9, got an"),
        (
            ["--length=9", "--motif=uv@1", "--motif=Xy@1"],
            None,
            "Xy@1 must allow a symbol in common",
        ),
        (["--length=4", "--motif=uvw", "--motif=xy"], None, "must fit side by side within length"),
        (["--length=4", "--motif=@3"], None, "sample.motif must be PATTERN or PATTERN@START"),
        (["--length=4", "--rc-consistent"], None, "sample.rc_consistent must be left out for seq"),
        (["--length=0"], None, "sample.length must be at least 1, got 0"),
        (["--length=4", "--num=0"], None, "sample.num must be at least 1, got 0"),
    ],
)
def test_bad_requests(refuses, flags: list[str], template: str | None, said: str) -> None:
    refuses(said, *flags, template=template)


def test_a_tokenizer_without_patterns(refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RingTokenizer, "allowed")
    said = "must go with a tokenizer that reads patterns, got a run with RingTokenizer"
    refuses(f"sample.infill {said}", INFILL, template="a -\n")
    refuses(f"sample.motif {said}", "--length=4", "--motif=uv")


def test_a_sampler_that_prefers_an_end_is_not_consistent(table_run: Path, fails, tmp_path) -> None:
    command = ["sample", str(table_run), "--num=1", "--seed=1", f"--out={tmp_path / 'x.fa'}"]
    said = "must go with a sampler that treats both ends alike, got ConfidenceSampler"
    assert said in fails([*command, "--length=3", "--rc-consistent", "--sampler=confidence"])


@pytest.mark.usefixtures("toy_writer")
def test_longer_than_the_context(trained: Path, tmp_path: Path, fails, monkeypatch) -> None:
    """It is drawn on request; a sliding window shows no more; a bound is enforced."""
    out = tmp_path / "x.ring"
    assert {len(s) for s in ring(trained, out, "--length=20", "--extrapolate")} == {20}
    slide = ["--sampler=semi_autoregressive", "--window=12", "--stride=6"]
    assert {len(s) for s in ring(trained, out, "--length=20", *slide)} == {20}
    monkeypatch.setattr(ToyNet, "max_length", 12, raising=False)
    assert {len(s) for s in ring(trained, out, "--length=20", *slide)} == {20}
    command = ["sample", str(trained), "--num=1", "--seed=1", f"--out={out}", "--length=20"]
    said = "sample.length must be at most 12 tokens, all that the network of"
    assert said in fails([*command, "--extrapolate"])
