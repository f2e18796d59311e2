"""Options of a process are parsed by their types, from flags and from files."""

from pathlib import Path

import pytest
import yaml

from seqdiff.run.config import instantiate, parse_run
from seqdiff.schedules import Cosine, Polynomial


@pytest.mark.parametrize("process", ["Absorbing", "seqdiff.process.Uniform"])
def test_a_schedule_is_chosen_by_name(process: str, config: Path) -> None:
    flags = [f"--process={process}", "--process.schedule=Cosine"]
    assert instantiate(parse_run(config, flags)).process.schedule == Cosine()
    content = yaml.safe_load(config.read_text())
    schedule = {"class_path": "seqdiff.schedules.Polynomial", "init_args": {"power": 3.0}}
    content["process"] = {"class_path": process, "init_args": {"schedule": schedule}}
    config.write_text(yaml.safe_dump(content))
    assert instantiate(parse_run(config)).process.schedule == Polynomial(3.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--process.schedule=Sine"], "Cosine"),
        (["--process=Uniform", "--process.schedule=3"], "Cosine"),
        (["--process=Hybrid", "--process.p_u=much"], "p_u"),
        (["--parameterization=Subs", "--parameterization.carry_over=perhaps"], "carry_over"),
    ],
)
def test_a_value_of_another_type_raises(flags: list[str], said: str, config: Path) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_run(config, flags)
    assert "\n" not in str(caught.value)
