"""``seqdiff sample`` chooses and configures any sampler; ``seqdiff samplers`` lists them."""

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest

from seqdiff.cli.app import main, parse
from seqdiff.cli.options import part
from seqdiff.run.sampler_config import build_sampler, list_options
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    FirstHittingSampler,
    LeftToRightSampler,
    RemaskLoopSampler,
    Sampler,
    SemiAutoregressiveSampler,
    named_samplers,
)
from seqdiff.samplers.canvas import Canvas

pytestmark = pytest.mark.usefixtures("toy_writer")


def count_first(tokens):
    return (tokens == 0).sum(dim=-1)


NEEDED = {
    "semi_autoregressive": ["--window=4", "--stride=2"],
    "smc": [f"--reward={__name__}.count_first"],
}


class ConstantSampler(Sampler):
    """A sampler outside of the package, which fills in the first letter."""

    def fill(self, canvas: Canvas) -> None:
        masked = canvas.masked
        canvas.write(masked, masked.sum().new_zeros(int(masked.sum())))
        canvas.end_step()


@pytest.mark.parametrize(
    ("words", "sampler"),
    [
        ("", FirstHittingSampler()),
        ("--sampler first_hitting --num-steps 6", FirstHittingSampler(num_steps=6)),
        ("--num_steps=6 --temperature 0.5", FirstHittingSampler(num_steps=6, temperature=0.5)),
        ("--sampler first-hitting", FirstHittingSampler()),
        ("--sampler=ancestral --top-k 3", AncestralSampler(top_k=3)),
        ("--sampler=left_to_right --temperature .5", LeftToRightSampler(temperature=0.5)),
        (
            "--t-on 0.7 --sampler remask_loop --eta .2 --top-p 0.9",
            RemaskLoopSampler(t_on=0.7, eta=0.2, top_p=0.9),
        ),
        (
            "--sampler semi-autoregressive --window 4 --stride 2 --inner cached-ancestral "
            "--inner.num-steps 7 --inner.temperature 2.5",
            SemiAutoregressiveSampler(4, 2, CachedAncestralSampler(7, temperature=2.5)),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [True, False], ids=["run first", "run last"])
def test_flags_configure_the_sampler(words: str, sampler: Sampler, first: bool) -> None:
    own = "--num 1 --length 3 --seed 0 --out a.ring --batch-size 2".split()
    run = [["RUN"], []] if first else [[], ["RUN"]]
    _, bound = parse(["sample", *run[0], *words.split(), *own, *run[1]])
    given = bound.arguments
    directory, flags = part("sample", given["words"])
    assert (directory, given["batch_size"]) == (Path("RUN"), 2)
    assert build_sampler(given.get("sampler", "first_hitting"), flags) == sampler


def test_every_sampler_can_be_named() -> None:
    for name, cls in named_samplers().items():
        if cls.__module__.startswith("seqdiff."):
            assert type(build_sampler(name, NEEDED.get(name, []))) is cls


def test_a_reward_is_any_function_by_its_import_path(trained: Path, tmp_path: Path) -> None:
    out, name = tmp_path / "a.ring", f"{__name__}.{count_first.__name__}"
    reward = ("--sampler", "smc", "--reward", name, "--reward-temperature", "0.1")
    free, tilted = _sample(trained, out), _sample(trained, out, *reward)
    assert sum(s.count("u") for s in tilted) > 2 * sum(s.count("u") for s in free)
    assert _sample(trained, out, *reward, "--batch_size", "2") == tilted


def _sample(trained: Path, out: Path, *more: str) -> list[str]:
    command = ["sample", str(trained), "--num", "5", "--length", "9", "--seed", "3"]
    assert main([*command, "--out", str(out), *more]) == 0
    return out.read_text().split()[1::2]


def test_sequences_follow_the_sampler_and_not_the_batch_size(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.ring"
    whole = _sample(trained, out)
    assert len(whole) == 5 and all(len(s) == 9 and set(s) <= set("uvwxyz") for s in whole)
    assert _sample(trained, out, "--batch_size", "2") == whole
    assert _sample(trained, out, "--sampler", "confidence") != whole
    one_step = _sample(trained, out, "--sampler", "ancestral", "--num-steps", "1")
    assert one_step != whole
    outside = f"{__name__}.{ConstantSampler.__name__}"
    assert _sample(trained, out, "--sampler", outside) == ["u" * 9] * 5


def test_samplers_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samplers"]) == 0
    table, groups, last = capsys.readouterr().out.split("\n\n")
    lines = table.splitlines()
    listed = [line.split()[0] for line in lines]
    assert listed == sorted(named_samplers()) and "first_hitting" in listed
    (line,) = (line for line in lines if line.startswith("first_hitting "))
    assert line.split(maxsplit=1)[1].startswith("The model's own distribution exactly, one eva")
    grouped = [set(re.findall(r"\w+", names)) for names in re.findall(r":([^:]*)\.", groups)]
    assert len(grouped) == 3 and sum(map(len, grouped)) == len(listed)
    ours = {n for n, cls in named_samplers().items() if cls.__module__.startswith("seqdiff.")}
    assert [names & ours for names in grouped] == [
        {"first_hitting", "left_to_right", "block"},
        {"ancestral", "cached_ancestral", "gaussian", "gibbs", "tau_leaping", "tweedie"},
        {
            *("confidence", "entropy", "entropy_budget", "margin", "threshold"),
            *("predictor_corrector", "semi_autoregressive", "smc"),
            *("remask_cap", "remask_conf", "remask_loop", "remask_rescale"),
        },
    ]
    assert last == "The options of one: seqdiff samplers NAME\n"


def test_options_are_listed_with_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    for name, cls in named_samplers().items():
        if not cls.__module__.startswith("seqdiff."):
            continue
        assert all(option.meaning for option in list_options(cls)), name
        assert main(["samplers", name.replace("_", "-")]) == 0
        shown = capsys.readouterr().out
        flags = [line.split()[0] for line in shown.splitlines() if line.startswith("  --")]
        assert flags == ["--" + option.replace("_", "-") for option in signature(cls).parameters]
        assert "``" not in shown and max(map(len, shown.splitlines())) <= 110
    assert main(["samplers", "smc"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in (
        "--reward a function that can be imported, as module.function; must be given Scores rows",
        "--num-particles an integer; default: 16",
        "--resampling one of systematic, multinomial; default: systematic",
        "--top-k an integer; default: none Draw among the k most likely symbols only.",
    ):
        assert said in shown
    assert main(["samplers", "semi_autoregressive"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--inner a sampler that seqdiff samplers lists; default: first_hitting" in shown
    assert "spelled like --inner.temperature" in shown
    assert main(["samplers", f"{__name__}.{ConstantSampler.__name__}"]) == 0
    assert "it takes none" in capsys.readouterr().out


def test_options_of_no_sampler(fails: Callable[..., str]) -> None:
    assert "must be one of ancestral, " in fails(["samplers", "nope"])


def test_help_says_where_the_options_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    assert "seqdiff samplers NAME lists them" in " ".join(capsys.readouterr().out.split())


WINDOW = ["--window=4", "--stride=2"]


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("first_hitting", ["--top_k=1.5"], "--top-k must be an integer, got 1.5; its options are"),
        ("first_hitting", ["--top_k", "1.5"], "--top-k must be an integer, got 1.5; its options"),
        ("smc", [], "sample.sampler smc must be given --reward; see: seqdiff samplers smc"),
        (
            "smc",
            ["--reward=no.such"],
            "--reward must be a function that can be imported, as module.function, got no.such "
            "(No module named 'no'; --trust-code finds modules of this folder); its",
        ),
        ("smc", ["--reward=math.pi"], "as module.function, got math.pi; its options are"),
        (
            "smc",
            ["--reward=math.floor", "--resampling=x"],
            "--resampling must be one of systematic, multinomial, got x; its options are",
        ),
        (
            "semi_autoregressive",
            [*WINDOW, "--inner=ancestral", "--inner.top_k=1.5"],
            "--inner.top-k must be an integer, got 1.5; its options are",
        ),
        (
            "semi_autoregressive",
            [*WINDOW, "--inner=ancestral", "--inner.topk=1"],
            "--inner has no option topk, only --inner.num-steps, --inner.temperature, ",
        ),
        ("semi_autoregressive", [*WINDOW, "--inner=nope"], "--inner must be a sampler that seqd"),
    ],
)
def test_wrong_options_are_named(name: str, flags: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        build_sampler(name, flags)
    message = str(caught.value)
    assert f"see: seqdiff samplers {name}" in message
    assert "\n" not in message and "Union" not in message and "<class" not in message
