"""``seqdiff sample`` chooses and configures any sampler; ``seqdiff samplers`` lists them."""

from pathlib import Path

import pytest

from seqdiff.cli import main, parse
from seqdiff.sampler_config import build_sampler
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
    """Outside of the package: fills in the first letter."""

    def fill(self, canvas: Canvas) -> None:
        masked = canvas.masked
        canvas.place(masked, masked.sum().new_zeros(int(masked.sum())))
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
    args = parse(["sample", *run[0], *words.split(), *own, *run[1]])
    assert (args.directory, args.batch_size) == (Path("RUN"), 2)
    assert build_sampler(args.sampler or "first_hitting", args.flags) == sampler


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
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines]
    assert listed == sorted(named_samplers()) and "first_hitting" in listed
    (line,) = (line for line in lines if line.startswith("first_hitting "))
    assert line.split(maxsplit=1)[1].startswith("The model's own law exactly, one evaluation a tok")
