"""``seqdiff sample --trace`` writes every state of every sequence exactly."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from seqdiff.cli.app import main
from seqdiff.data import Records
from seqdiff.plots.trace import develop
from seqdiff.run import Run, engine, load
from seqdiff.run.sampler_config import build_sampler
from seqdiff.samplers import FirstHittingSampler, Recorder, recorder
from seqdiff.trace import read_trace
from seqdiff.types import Inputs

pytestmark = pytest.mark.usefixtures("toy_writer")

NUM, LENGTH, SEED, BATCH = 5, 12, 3, 2
SAMPLERS = {
    "first_hitting": [],
    "first_hitting in 5 steps": ["--num_steps=5"],
    "ancestral": ["--num_steps=7"],
    "entropy_budget": [],
    "remask_loop": ["--num_steps=40", "--eta=0.9"],
    "predictor_corrector": ["--num_steps=9", "--renoise=0.5"],
    "semi_autoregressive": [
        "--window=5",
        "--stride=3",
        "--inner=remask_cap",
        "--inner.eta=0.6",
        "--inner.num_steps=8",
    ],
    "smc": [f"--reward={__name__}.count_first", "--num_particles=4", "--reward_temperature=0.1"],
}


def count_first(tokens):
    return (tokens == 0).sum(dim=-1)


@pytest.fixture(scope="module")
def run(trained: Path) -> Run:
    return load(trained)


def _sample(trained: Path, out: Path, case: str, *more: str) -> list[str]:
    command = ["sample", str(trained), "--num", str(NUM), "--length", str(LENGTH)]
    command += ["--seed", str(SEED), "--batch_size", str(BATCH), "--out", str(out)]
    assert main([*command, "--sampler", case.split()[0], *SAMPLERS[case], *more]) == 0
    return out.read_text().split()[1::2]


def _seen(run: Run, case: str) -> list[list[list[int]]]:
    """The states that a callback receives, by row, from ``x_init`` on."""
    sampler = build_sampler(case.split()[0], SAMPLERS[case])
    seeds = run.row_seeds(NUM, SEED)
    rows: list[list[list[int]]] = []
    for first in range(0, NUM, BATCH):
        x_init = run.process.blank((min(BATCH, NUM - first), LENGTH))
        states = [x_init.tolist()]

        def keep(step: int, x_t: torch.Tensor, states: list = states) -> None:
            states[step:] = [x_t.tolist()]

        sampler.sample(
            run.denoiser,
            x_init,
            seeds=seeds[first : first + BATCH],
            callback=keep,
        )
        rows += [[state[row] for state in states] for row in range(len(x_init))]
    return rows


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_trace_holds_what_a_callback_sees_and_changes_no_sample(
    trained: Path, run: Run, tmp_path: Path, case: str
) -> None:
    out, path = tmp_path / "a.ring", tmp_path / "t.npz"
    plain = _sample(trained, out, case)
    assert _sample(trained, out, case, "--trace", str(path)) == plain
    trace, seen = read_trace(path), _seen(run, case)
    assert trace.sampler == case.split()[0]
    assert trace.names == tuple(f"sample_{i}" for i in range(NUM))
    assert trace.symbols == tuple("uvwxyz-")
    assert trace.lengths.tolist() == [LENGTH] * NUM
    for row in range(NUM):
        states = trace.states(row)
        assert states.tolist() == seen[row]
        assert len(states) == trace.num_steps[row] + 1
        assert run.tokenizer.decode(states[-1]) == plain[row]


@pytest.mark.parametrize(
    "case", ["remask_loop", "predictor_corrector", "semi_autoregressive", "first_hitting"]
)
def test_what_is_hidden_again_is_found(trained: Path, tmp_path: Path, case: str) -> None:
    path = tmp_path / "t.npz"
    _sample(trained, tmp_path / "a.ring", case, "--trace", str(path))
    trace, total = read_trace(path), 0
    for row in range(NUM):
        states = trace.states(row)
        hidden = [
            [s[i] == 6 and any(before[i] != 6 for before in states[:step]) for i in range(LENGTH)]
            for step, s in enumerate(states)
        ]
        film = develop(trace, row, max_steps=10**6, max_positions=10**6)
        assert film.tokens.tolist() == states.tolist()
        assert film.hidden_again.tolist() == hidden
        assert film.masked.tolist() == (states == 6).sum(axis=1).tolist()
        total += np.sum(hidden)
    assert (total > 0) == (case != "first_hitting")


def test_given_letters_stay_and_batches_come_in_any_order_and_length(run: Run) -> None:
    templates = {2: [0, 6, 6, 3], 0: [6, 6, 2, 6, 6, 1], 1: [5, 5, 5, 5, 5, 5]}
    found = Recorder()
    drawn = {}
    for rows in ([2], [0, 1]):
        x_init = torch.tensor([templates[row] for row in rows])
        found.start(x_init, rows)
        generator = torch.Generator().manual_seed(0)
        output = FirstHittingSampler().sample(
            run.denoiser, x_init, generator=generator, callback=found
        )
        drawn |= dict(zip(rows, output.tokens.tolist(), strict=True))
    trace = found.trace(sampler="mine", names=["a", "b", "c"], symbols=list("uvwxyz-"))
    assert trace.num_steps.tolist() == [4, 4, 2] and trace.lengths.tolist() == [6, 6, 4]
    for row, template in templates.items():
        states = trace.states(row)
        assert states[0].tolist() == template and states[-1].tolist() == drawn[row]
        for position, letter in enumerate(template):
            assert letter == 6 or set(states[:, position]) == {letter}
    assert trace.x_init[2].tolist() == [0, 6, 6, 3, 6, 6]
    with pytest.raises(ValueError, match=r"Trace.row must be in 0..2, got 3; choose another"):
        trace.states(3)


@pytest.mark.parametrize(
    "case",
    ["first_hitting", "first_hitting in 5 steps", "ancestral", "entropy_budget", "remask_loop"],
)
def test_who_watches_is_told_the_probability_that_the_model_gave_each_token(
    run: Run, case: str
) -> None:
    flags = [*SAMPLERS[case], "--temperature=0.5"]  # probabilities are those before it
    template = "u-V--W------"
    allowed = torch.from_numpy(run.tokenizer.allowed(template))
    state = torch.zeros((3, LENGTH), dtype=torch.int64)
    compared = 0

    def watch(step: int, changes: np.ndarray, chance: np.ndarray) -> None:
        nonlocal compared
        row, position, token = torch.from_numpy(changes.astype(np.int64)).T
        if step > 0 and case != "remask_loop":  # which draws after remasking, within a step
            every = run.denoiser.log_probs(Inputs(state)).double().masked_fill(~allowed, -torch.inf)
            found = every.softmax(dim=-1)[row, position, token].detach()
            assert np.allclose(found, chance, atol=1e-6)
            compared += len(chance)
        assert (np.isnan(chance) == (step == 0) | (token == 6).numpy()).all()
        state[row, position] = token

    templates = Records([("a", template)], 3, run.tokenizer)
    recorder = Recorder(watch)
    drawn = list(
        run.draw(
            templates,
            sampler=build_sampler(case.split()[0], flags),
            seed=0,
            recorder=recorder,
        )
    )
    assert [run.tokenizer.decode(row.tolist()) for row in state] == drawn
    assert compared == (0 if case == "remask_loop" else 33)


def test_nothing_is_recorded_unasked(trained: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(self: Recorder, watch: object = None) -> None:
        raise AssertionError

    monkeypatch.setattr(Recorder, "__init__", refuse)
    _sample(trained, tmp_path / "a.ring", "first_hitting")
    with pytest.raises(AssertionError):
        _sample(trained, tmp_path / "a.ring", "first_hitting", "--trace", str(tmp_path / "a.npz"))


@pytest.mark.parametrize("case", SAMPLERS)
def test_the_sampling_bar_never_runs_back_or_past_its_end(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    shown: list[float] = []

    class Bar(Progress):
        def update(self, task, *, completed: float, **text: str) -> None:
            shown.append(completed)

    monkeypatch.setattr(engine, "progress", Bar)
    _sample(trained, tmp_path / "a.ring", case)
    assert shown == sorted(shown) and shown[-1] == NUM


@pytest.mark.parametrize(
    ("num", "trace", "message"),
    [
        ("1", "t.txt", r"sample.trace must end in .npz, got {}/t.txt; rename it"),
        ("1", "t", r"sample.trace must end in .npz, got {}/t; rename it"),
        ("1", "a.npz", r"sample.trace must be another file than --out, got {}/a.npz; rename one"),
        ("1", "no/t.npz", r"sample.trace must lie in an existing folder, got {0}/no/t.npz; "),
        (
            "1000000000000",
            "t.npz",
            "sample.trace must fit in memory, got 1,000,000,000,000 sequences of 9 tokens; lower "
            "--num or --length, or leave --trace out",
        ),
    ],
)
def test_a_trace_that_cannot_be_is_refused_before_the_run_is_read(
    tmp_path: Path, fails: Callable, monkeypatch, num: str, trace: str, message: str
) -> None:
    out = tmp_path / "a.npz" if trace == "a.npz" else tmp_path / "a.ring"
    monkeypatch.setattr("seqdiff.cli.sample.find_writer", lambda path, run: None)
    command = ["sample", "no run", "--num", num, "--length", "9", "--seed", "0"]
    said = fails([*command, "--out", str(out), "--trace", str(tmp_path / trace)])
    assert message.format(tmp_path) in said
    assert not list(tmp_path.iterdir())


def test_a_failed_trace_costs_no_samples(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    command = ["sample", str(trained), "--num", "1", "--length", "4", "--seed", "0"]
    out, path = tmp_path / "a.ring", tmp_path / "t.npz"
    assert main([*command, "--out", str(out), "--trace", str(path)]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["a.ring"]


def test_a_recorder_that_was_not_started_anew_is_found() -> None:
    found = Recorder()
    found.start(torch.tensor([[2, 2]]), [0])
    found(1, torch.tensor([[1, 2]]))
    found(1, torch.tensor([[0, 2]]))
    with pytest.raises(AssertionError):
        found.trace(sampler="mine", names=["a", "b"], symbols=list("uv-"))
    with pytest.raises(AssertionError):
        found(3, torch.tensor([[0, 2]]))


def test_steps_that_are_told_again_are_forgotten() -> None:
    found, told, source = Recorder(), {}, torch.Generator().manual_seed(0)
    for rows, steps in (([2, 0], [1, 2, 3, 2, 3, 4]), ([1], [1, 2, 1, 2])):
        states = [torch.full((len(rows), 3), 6)]
        found.start(states[0], rows)
        for step in steps:
            states[step:] = [torch.randint(7, states[0].shape, generator=source)]
            found(step, states[-1])
        told |= {row: torch.stack(states)[:, i].tolist() for i, row in enumerate(rows)}
    trace = found.trace(sampler="mine", names=["a", "b", "c"], symbols=list("uvwxyz-"))
    assert trace.num_steps.tolist() == [4, 2, 4]
    assert {row: trace.states(row).tolist() for row in range(3)} == told


def test_room_is_asked_for_every_sequence() -> None:
    recorder.check_room(10, 10)
    with pytest.raises(ValueError, match="must fit in memory, got 1,000,000,000 sequences of 1,00"):
        recorder.check_room(10**9, 1000)
