"""Containers, workflows and the conda recipe agree with pyproject.toml and with the checkout."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEAST_PYTHON = PROJECT["requires-python"].removeprefix(">=")
WORKFLOWS = ROOT / ".github" / "workflows"
# What conda-forge calls some distributions; and what an extra of another one installs.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
OF_EXTRAS = {"typeshed-client": ">=2.8.2", "docstring-parser": ">=0.17"}


def _problems(dockerfile: str, ignored: list[str]) -> list[str]:
    """What is wrong with a Dockerfile: paths, extras, pins, user and entry point."""
    parser = pytest.importorskip("dockerfile_parse", reason="dockerfile-parse is not installed")
    import io

    lines = parser.DockerfileParser(fileobj=io.BytesIO(dockerfile.encode())).structure
    of = {kind: [] for kind in ("FROM", "COPY", "RUN", "USER", "ENTRYPOINT")}
    for line in lines:
        of.setdefault(line["instruction"], []).append(line["value"])
    found = []
    if of["FROM"] != [f"python:{LEAST_PYTHON}-slim"]:
        found.append(f"FROM {of['FROM']} is not the Python of constraints.txt")
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for words in map(str.split, of["COPY"]):
        for source in words[:-1]:
            if not (ROOT / source).exists() or not any(fnmatch(source, k) for k in kept):
                found.append(f"COPY {source}: missing or ignored")
    extras = re.findall(r"'\.\[([\w,]+)\]'", " ".join(of["RUN"]))
    if not extras or not set(",".join(extras).split(",")) <= set(PROJECT["optional-dependencies"]):
        found.append(f"extras {extras} are not in pyproject.toml")
    for install in re.findall(r"pip install ([^&]*)", " ".join(of["RUN"])):
        if "--constraint constraints.txt" not in install:
            found.append(f"pip install {install}: not pinned")
    if not of["USER"] or of["USER"][-1] in ("root", "0"):
        found.append("it runs as root")
    if of["ENTRYPOINT"] != ['["seqdiff"]']:
        found.append(f"ENTRYPOINT {of['ENTRYPOINT']}")
    return found


def test_dockerfiles() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in ("Dockerfile", "Dockerfile.cuda"):
        text = (ROOT / "docker" / name).read_text()
        assert not _problems(text, ignored), name
        for right, wrong, said in (
            ("COPY seqdiff seqdiff", "COPY docs docs", "docs: missing or ignored"),
            ("COPY seqdiff seqdiff", "COPY nothing seqdiff", "nothing: missing or ignored"),
            ("[text,", "[texts,", "are not in pyproject.toml"),
            ("--constraint constraints.txt '.[", "'.[", "not pinned"),
            ("USER seqdiff", "USER root", "it runs as root"),
            (":3.11-slim", ":3.10-slim", "is not the Python"),
        ):
            (problem,) = _problems(text.replace(right, wrong), ignored)
            assert said in problem


def _jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def _runs(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflows() -> None:
    test = _jobs("ci.yml")["test"]
    assert "bash .ci/run" in _runs(test)
    assert test["strategy"]["matrix"]["python-version"] == [LEAST_PYTHON]
    built = _jobs("ci.yml")["containers"]
    files = built["strategy"]["matrix"]["file"]
    assert sorted(files) == sorted(path.name for path in (ROOT / "docker").iterdir())
    release = _jobs("release.yml")
    assert release["publish"]["needs"] == "build"
    assert release["publish"]["permissions"] == {"id-token": "write"}, "trusted publishing"
    assert "python -m twine check --strict dist/*" in _runs(release["build"])
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert set(re.findall(r"^make (\w+)$", "\n".join(ci), re.M)) == {
        *("test", "slow", "lint", "docs", "wheel")
    }
    for path in WORKFLOWS.iterdir():
        jobs = _jobs(path.name).values()
        for used in (step["uses"] for job in jobs for step in job["steps"] if "uses" in step):
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", used), used
        for version in re.findall(r"python-version: \"(.+)\"", path.read_text()):
            assert version == LEAST_PYTHON


def test_conda_recipe_has_the_dependencies_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"] == {"version": PROJECT["version"], "python_min": LEAST_PYTHON}
    expected = {}
    for text in PROJECT["dependencies"]:
        needed = Requirement(text)
        expected[CONDA_NAMES.get(needed.name, needed.name)] = str(needed.specifier)
    found = dict(line.split(" ", 1) for line in recipe["requirements"]["run"])
    assert found.pop("python") == ">=${{ python_min }}"
    assert found == expected | OF_EXTRAS
    script = PROJECT["scripts"]["seqdiff"]
    assert recipe["build"]["python"]["entry_points"] == [f"seqdiff = {script}"]
