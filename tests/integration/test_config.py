"""Configurations: precedence, composition, round trips, and one-line errors that list
the choices.
"""

import re
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from seqdiff.objectives import ContinuousNELBO, DiscreteNELBO, WeightedMLM
from seqdiff.process import Absorbing, Uniform
from seqdiff.run.config import dump, instantiate, parse_run
from seqdiff.run.config_files import config_files, make_absolute
from seqdiff.schedules import Cosine, LogLinear, Polynomial
from tests.integration.conftest import TOY
from tests.integration.toy_domain import ALPHABET

K = len(ALPHABET)
CONFIGS = Path(__file__).parents[2] / "configs"
FROM_HUB = sorted((CONFIGS / "experiment" / "text" / f"{name}.yaml") for name in ("bert", "gpt2"))
EXPERIMENTS = sorted(set((CONFIGS / "experiment").rglob("*.yaml")) - set(FROM_HUB))
PARTS = sorted(set(CONFIGS.glob("*/*.yaml")) - set(EXPERIMENTS))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave large weights as allocated; drawing them takes longer than all else."""
    for name in ("kaiming_uniform_", "normal_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_shipped_experiment_builds(path: Path, tmp_path: Path) -> None:
    flags = ["--output", str(tmp_path / "run")]
    config = instantiate(parse_run(path, flags))
    assert config.backbone.config.num_logits == config.data.tokenizer.vocab_size


@pytest.mark.parametrize("path", FROM_HUB, ids=lambda path: path.stem)
def test_every_experiment_from_a_checkpoint_builds(path: Path, tmp_path: Path) -> None:
    """Their published weights cannot be included; tiny ones with random weights stand in."""
    pytest.importorskip("transformers")
    from tests.text.pretrained.tiny_bert import save_bert
    from tests.text.pretrained.tiny_gpt2 import save_gpt2

    folder = {"bert": save_bert, "gpt2": save_gpt2}[path.stem](tmp_path / "hub")
    flags = ["--output", str(tmp_path / "run"), "--backbone.checkpoint", str(folder)]
    flags += ["--data.tokenizer.vocabulary", str(folder)]
    config = instantiate(parse_run(path, flags))
    assert config.backbone.vocab_size == config.data.tokenizer.vocab_size


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("path", PARTS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_shipped_part_builds(path: Path) -> None:
    """The folder of a part has the name of its key."""
    demo = CONFIGS / "experiment" / "genomics" / "demo.yaml"
    built = instantiate(parse_run(demo, [f"--{path.parent.name}", str(path)]))
    kind = yaml.safe_load(path.read_text())["class_path"].rpartition(".")[2]
    assert type(getattr(built, path.parent.name)).__name__ == kind


def test_every_shipped_file_is_tested() -> None:
    tested = {CONFIGS / "base.yaml", *EXPERIMENTS, *FROM_HUB, *PARTS}
    assert set(CONFIGS.rglob("*.y*ml")) == tested
    assert all(
        config_files(path)[0].resolve() == CONFIGS / "base.yaml"
        for path in (*EXPERIMENTS, *FROM_HUB)
    )


def test_precedence(config: Path) -> None:
    """Code < base < experiment < flag, each tested with a key of its own."""
    base = config.parents[1] / "base.yaml"
    text = yaml.safe_load(base.read_text())
    base.write_text(yaml.safe_dump({**text, "seed": 1, "optim": {"lr": 0.5, "warmup_steps": 9}}))
    parsed = parse_run(config)
    assert parsed["optim"]["eps"] == 1e-8
    assert parsed["ema_decay"] == 0.9
    assert (parsed["seed"], parsed["optim"]["lr"], parsed["optim"]["warmup_steps"]) == (7, 0.02, 2)
    flagged = parse_run(config, ["--seed", "3", "--optim.lr=0.1", "--process.schedule", "Cosine"])
    assert (flagged["seed"], flagged["optim"]["lr"]) == (3, 0.1)
    assert instantiate(flagged).process.schedule == Cosine()


def test_another_class_drops_the_arguments_of_the_first(config: Path) -> None:
    flags = ["--process.schedule", "Polynomial", "--process.schedule.power", "2"]
    flags += ["--objective", "WeightedMLM"]
    built = instantiate(parse_run(config, flags))
    assert built.process.schedule == Polynomial(2.0)
    assert built.objective == WeightedMLM()


def test_lists_replace_and_null_survives(config: Path) -> None:
    flags = ["--ema_decay", "null", "--optim.betas", "[0.8, 0.95]", "--trainer.devices", "[0, 1]"]
    parsed = parse_run(config, flags)
    config.with_name("again.yaml").write_text(dump(parsed))
    again = parse_run(config.with_name("again.yaml"))
    assert again["ema_decay"] is None
    built = instantiate(again)
    assert built.optim.betas == (0.8, 0.95)
    assert built.trainer.devices == [0, 1]


COMPLETE = st.one_of(st.floats(0.1, 9).map(Polynomial), st.just(Cosine()), st.just(LogLinear()))
PROCESSES = st.one_of(
    COMPLETE.map(lambda schedule: Absorbing(K, schedule)),
    st.floats(0, 0.9).map(lambda eps: Uniform(K, LogLinear(eps))),
)
OBJECTIVES = st.one_of(
    st.just(ContinuousNELBO()), st.just(WeightedMLM()), st.integers(1, 99).map(DiscreteNELBO)
)


@settings(
    max_examples=15,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    lr=st.floats(1e-12, 1e3),
    process=PROCESSES,
    objective=OBJECTIVES,
    decay=st.none() | st.floats(0, 0.999999),
    clip=st.none() | st.floats(1e-9, 1e9),
)
def test_dump_then_parse_is_the_identity(
    config: Path, seed, lr, process, objective, decay, clip
) -> None:
    path = config.with_name("drawn.yaml")
    drawn = {
        "seed": seed,
        "ema_decay": decay,
        "optim": {"lr": lr},
        "trainer": {"gradient_clip_val": clip},
        "process": _as_config(process),
        "objective": _as_config(objective),
    }
    path.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **drawn}))
    parsed = parse_run(path)
    path.write_text(dump(parsed))
    again = parse_run(path)
    assert again == parsed
    one, two = instantiate(parsed), instantiate(again)
    assert (one.seed, one.optim, one.process, one.objective, one.ema_decay, one.trainer) == (
        two.seed,
        two.optim,
        two.process,
        two.objective,
        two.ema_decay,
        two.trainer,
    )
    assert two.process == process and two.objective == objective and two.optim.lr == lr


_LINKED = ("vocab_size", "reserved")


def _as_config(value: object) -> dict:
    fields = {k: v for k, v in vars(value).items() if k not in _LINKED}
    fields = {k: v if isinstance(v, int | float) else _as_config(v) for k, v in fields.items()}
    kind = type(value)
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": fields}


def test_a_flag_beside_the_wrong_one_may_name_a_binary_file(
    config: Path, tmp_path: Path, fails
) -> None:
    (tmp_path / "rows.gz").write_bytes(b"\x1f\x8b\x08")
    flags = ["--start_from", str(tmp_path / "rows.gz"), "--optim.lrr", "1"]
    assert "optim.lrr 1; choose from lr, weight_decay, betas" in fails(
        ["train", str(config), *flags]
    )


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--optim.lrr", "1"], "optim.lrr 1; choose from lr, weight_decay, betas"),
        (["--optimm", "1"], "--optimm 1; choose from output, data, backbone, process"),
        (["--backbone.init_args.widht=5"], "'widht' is not accepted; choose from width"),
        (
            ["--backbone", "tests.integration.toy_domain.NotABackbone"],
            "backbones.Caduceus",
        ),
        (["--backbone", "torch.nn.Linear"], "choose from"),
        (["--backbone", "torch.nn.Identity"], "choose from"),
        (["--process.schedule", f"{TOY}.ToyNet"], "seqdiff.schedules.Cosine"),
        (["--process.schedule", "Nowhere"], "seqdiff.schedules.Cosine"),
        (["--process=Uniform", "--process.schedule=Nowhere"], "seqdiff.schedules.Cosine"),
        (["--process=Hybrid", "--process.p_u=x"], "process.p_u must be a number, got x"),
        (
            ["--parameterization=Subs", "--parameterization.carry_over=x"],
            "carry_over must be true or false, got x",
        ),
        (["--objective.time_sampler", "Cosine"], "objectives.Sobol"),
        (["--data", "Nowhere"], f"{TOY}.ToyData"),
        (["--seed", "x"], "seed must be an integer, got x"),
        (["--experts.order", "x"], "experts.order must be an integer, got x"),
        (["--experts.odrer", "2"], "choose from order"),
        (["--experts.order", "-1"], "error: ExpertsConfig.order must be in 0..24, got -1; set"),
        (["--seed", "-1"], "RunConfig.seed must be in [0, 2^32), got -1"),
        (["--optim.lr", "-1"], "OptimConfig.lr must be positive, got -1.0"),
        (["--optim.betas", "[0.9, 1.0]"], "OptimConfig.betas must be in [0, 1), got (0.9, 1.0)"),
        (["--optim.eps", "-1"], "OptimConfig.eps must be positive, got -1.0"),
        (["--optim.schedule", "square"], "constant"),
        (["--trainer.max_steps", "-1"], "TrainerConfig.max_steps must be at least 0, got -1"),
        (["--ema_decay", "1"], "EMA.decay must be in [0, 1), got 1.0"),
        (["--checkpoint_every_n_steps", "0"], "every_n_steps must be at least 1, got 0"),
        (["--data.init_args.batch_size", "0"], "ToyData.batch_size must be at least 1, got 0"),
        (["--trainer.gradient_clip_val", "-1"], "gradient_clip_val must be positive, got -1.0"),
        (["--trainer.limit_val_batches", "-1"], "limit_val_batches must be a count of at least 1"),
        (
            ["--trainer.limit_val_batches", "1.5"],
            "or a fraction in (0, 1], got 1.5; null takes all",
        ),
        (["--backbone.init_args.num_logits", "9"], "num_logits must not be set, got 9; drop it"),
        (["--backbone.num_embeddings=3"], "num_embeddings must not be set, got 3; drop it"),
        (["--output", ""], "RunConfig.output must name a folder of its own"),
        (["--outp", "x"], "--outp x"),
        (["--config", "x.yaml"], "must be keys that an option can set, got --config; leave"),
        (["--base=x.yaml"], "must be keys that an option can set, got --base=x.yaml; leave"),
        (
            ["--provenance", "{a: b}"],
            "must be keys that an option can set, got --provenance; leave",
        ),
        (["--provenance.a=b"], "must be keys that an option can set, got --provenance.a=b; leave"),
        (["--resumed+={}"], "must be keys that an option can set, got --resumed+={}; leave"),
        (["--process.schedule.eps", "0.1"], "must have alpha(0) = 1 and alpha(1) = 0"),
    ],
)
def test_bad_flags(config: Path, tmp_path: Path, fails, flags: list[str], said: str) -> None:
    assert said in fails(["train", str(config), *flags])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text, said",
    [
        ("optim: {lrr: 1}", "'lrr'; choose from lr, weight_decay"),
        ("optimm: {lr: 1}", "'optimm.lr' is not accepted; choose from output, data"),
        ("optim: [", "must be YAML"),
        ("just words", "must hold `key: value` lines"),
        ("base: nowhere.yaml", "must be an existing file"),
        ("base: bad.yaml", "must not be its own base"),
        ("seed: 1", "the following arguments are required: output, data, backbone"),
    ],
)
def test_bad_files(config: Path, fails, text: str, said: str) -> None:
    path = config.with_name("bad.yaml")
    path.write_text(text)
    assert said in fails(["train", str(path)])


def test_missing_file(fails) -> None:
    assert "must be an existing file, got nowhere.yaml" in fails(["train", "nowhere.yaml"])


def test_tracks_keep_their_order_and_become_absolute(tmp_path: Path, monkeypatch) -> None:
    """The order of tracks is that of a model's inputs, so a sorted file would swap them."""
    monkeypatch.chdir(tmp_path)
    Path("b.bw").touch()
    flags = ["--data.fasta", "g.fa", "--data.tracks", "{z: b.bw, a: absent.bw}"]
    parsed = parse_run(CONFIGS / "experiment" / "genomics" / "fasta.yaml", flags)
    make_absolute(parsed)
    Path("run.yaml").write_text(dump(parsed))
    data = instantiate(parse_run(Path("run.yaml"))).data
    assert data.signals == ["z", "a"] and data.signal_tracks
    assert list(data.tracks.values()) == [str(tmp_path / "b.bw"), "absent.bw"]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--optim.lr=x", "optim.lr must be a number, got x; correct it"),
        ("--trainer.max_steps=1.5", "trainer.max_steps must be an integer, got 1.5; correct it"),
        ("--trainer.max_steps=true", "trainer.max_steps must be an integer, got True; correct it"),
        ("--backbone.width=wide", "backbone.width must be an integer, got wide; correct it"),
        ("--ema_decay=[1]", "ema_decay must be a number, got [1]; correct it"),
        (
            "--optim.betas=.9",
            "optim.betas must be a list of 2 numbers in brackets, got 0.9; write [0.9]",
        ),
        (
            "--optim.betas=[a,b]",
            "optim.betas must be a list of 2 numbers in brackets, got ['a', 'b']; correct it",
        ),
        (
            "--optim.betas=[.9]",
            "optim.betas must be a list of 2 numbers in brackets, got [0.9]; correct it",
        ),
        ("--seed=99999999999", "RunConfig.seed must be in [0, 2^32), got 99999999999"),
        ("--backbone=.Net", "backbone must be an import path such as module.Class, got .Net"),
        (
            "--backbone=seqdiff.files.os.system",
            "backbone must be the import path of a class, got seqdiff.files.os.system; choose",
        ),
        ("--data=no.Module", "got no.Module, and no module no is installed; correct it, or add"),
    ],
)
def test_values_of_another_type_are_named_in_words(config: Path, flag: str, said: str) -> None:
    """The message names key, type and value, and not the parser's types."""
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        instantiate(parse_run(config, [flag]))
    assert "<class" not in str(raised.value) and str(config) not in str(raised.value)
