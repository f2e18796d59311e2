"""Forbidden words: the automaton against regular expressions, samplers against enumeration."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Hybrid, LeftToRight, Uniform
from seqdiff.samplers import (
    AncestralSampler,
    BlockSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    GibbsSampler,
    LeftToRightSampler,
    PredictorCorrectorSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    TauLeapingSampler,
    TweedieSampler,
    WordAutomaton,
)
from seqdiff.samplers.avoidance import Completions
from tests import distributions
from tests.block_worlds import BlockLookup, block_denoiser
from tests.causal_worlds import CausalLookup
from tests.enumeration import Distribution, Tokens, distance, outcomes
from tests.exact.test_gaussian_sampler import random_model  # noqa: F401
from tests.exact.test_sampler_contract import ALL, BrokenBatchNoise, Neighbours
from tests.noise_worlds import TableBackbone as NoisyTable
from tests.oracles import LookupBackbone, masked_model

EXACT = 1e-10
Word = list[set[int]]


def words(*texts: str) -> list[Word]:
    """Digits are symbols, ``[01]`` stands for either."""
    return [
        [set(map(int, part.strip("[]"))) for part in re.findall(r"\d|\[\d+\]", text)]
        for text in texts
    ]


def pattern(forbidden: list[Word]) -> re.Pattern[str]:
    parts = ["".join(f"[{''.join(map(str, sorted(s)))}]" for s in word) for word in forbidden]
    return re.compile("|".join(parts))


def fillings(x: Tokens, k: int, allowed: list[set[int]] | None = None) -> list[Tokens]:
    every = [set(range(k))] * len(x) if allowed is None else allowed
    return list(
        itertools.product(
            *(sorted(every[i]) if token == k else [token] for i, token in enumerate(x))
        )
    )


def clean(x: Tokens, forbidden: list[Word]) -> bool:
    return pattern(forbidden).search("".join(map(str, x))) is None


def restricted(
    x: Tokens, place: int, probs: list[float], forbidden: list[Word], allowed: list[set[int]] | None
) -> dict[int, float]:
    """One conditional distribution, within what some filling without a word has there."""
    left = {y[place] for y in fillings(x, len(probs), allowed) if clean(y, forbidden)}
    total = sum(probs[symbol] for symbol in left)
    return {symbol: probs[symbol] / total for symbol in left}


def in_turn(
    x: Tokens, places: list[int], probs: list[list[float]], forbidden, allowed
) -> Distribution:
    """Draw some positions from left to right."""
    ends: Distribution = {x: 1.0}
    for place in places:
        after: defaultdict[Tokens, float] = defaultdict(float)
        for y, chance in ends.items():
            for symbol, p in restricted(y, place, probs[place], forbidden, allowed).items():
                after[(*y[:place], symbol, *y[place + 1 :])] += chance * p
        ends = dict(after)
    return ends


def any_order(x: Tokens, table, k: int, forbidden, allowed, sizes: list[int]) -> Distribution:
    """Draw uniformly chosen positions, ``sizes`` at a time."""
    hidden = distributions.masked(x, k)
    if not hidden:
        return {x: 1.0}
    total: defaultdict[Tokens, float] = defaultdict(float)
    ways = list(itertools.combinations(hidden, sizes[0]))
    for places in ways:
        for y, chance in in_turn(x, list(places), table[x], forbidden, allowed).items():
            for z, last in any_order(y, table, k, forbidden, allowed, sizes[1:]).items():
                total[z] += chance * last / len(ways)
    return dict(total)


CASES = [
    (2, "22222", ["000", "11"], None),
    (2, "20222", ["01", "1[01]1"], None),
    (3, "3333", ["0[12]", "22", "1[012]0"], None),
    (3, "3313", ["01", "12", "2"], None),
    (4, "4444", ["[03][12]3", "00", "12"], None),
    (2, "22222", ["011", "101", "100"], [{0, 1}, {1}, {0, 1}, {0, 1}, {0}]),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[2]}")


def posed(case):
    k, text, texts, allowed = case
    forbidden = words(*texts)
    x_init = torch.tensor([int(symbol) for symbol in text])
    within = None
    if allowed is not None:
        within = torch.tensor([[symbol in part for symbol in range(k)] for part in allowed])
    denoiser = masked_model(LookupBackbone(k, len(text), seed=5))
    table = distributions.table(denoiser, k, len(text))
    return denoiser, x_init, within, forbidden, table


@each_case
def test_one_token_at_a_time_has_the_restricted_conditionals(case) -> None:
    denoiser, x_init, within, forbidden, table = posed(case)
    k, allowed = case[0], case[3]
    avoid = WordAutomaton.build(forbidden, k)
    found = outcomes(FirstHittingSampler(), denoiser, x_init, allowed=within, avoid=avoid)
    x = tuple(x_init.tolist())
    right = any_order(x, table, k, forbidden, allowed, [1] * len(x))
    assert distance(found.distribution, right) < EXACT
    assert all(clean(y, forbidden) for y in found.distribution)
    free = outcomes(FirstHittingSampler(), denoiser, x_init, allowed=within).distribution
    held = {y: p for y, p in free.items() if clean(y, forbidden)}
    if len(held) > 1:
        total = sum(held.values())
        conditional = {y: p / total for y, p in held.items()}
        assert distance(conditional, right) > 1e-3, "the docstring says that these differ"


@each_case
def test_tokens_of_one_step_are_drawn_from_left_to_right(case) -> None:
    denoiser, x_init, within, forbidden, table = posed(case)
    k, allowed = case[0], case[3]
    avoid = WordAutomaton.build(forbidden, k)
    sampler = FirstHittingSampler(num_steps=2)
    found = outcomes(sampler, denoiser, x_init, allowed=within, avoid=avoid)
    x = tuple(x_init.tolist())
    hidden = len(distributions.masked(x, k))
    right = any_order(x, table, k, forbidden, allowed, [-(-hidden // 2), hidden // 2])
    assert distance(found.distribution, right) < EXACT


@each_case
def test_the_grid_draws_the_tokens_of_its_steps_in_turn(case) -> None:
    """Two ancestral steps with linear noise unmask each position in either with probability 1/2."""
    denoiser, x_init, within, forbidden, table = posed(case)
    k, allowed = case[0], case[3]
    avoid = WordAutomaton.build(forbidden, k)
    found = outcomes(AncestralSampler(2), denoiser, x_init, allowed=within, avoid=avoid)
    x = tuple(x_init.tolist())
    hidden = distributions.masked(x, k)
    right: defaultdict[Tokens, float] = defaultdict(float)
    for first in itertools.product([True, False], repeat=len(hidden)):
        now = [place for place, chosen in zip(hidden, first, strict=True) if chosen]
        later = [place for place, chosen in zip(hidden, first, strict=True) if not chosen]
        for y, chance in in_turn(x, now, table[x], forbidden, allowed).items():
            for z, last in in_turn(y, later, table[y], forbidden, allowed).items():
                right[z] += chance * last / 2 ** len(hidden)
    assert distance(found.distribution, dict(right)) < EXACT


def test_without_looking_ahead_rows_run_into_a_dead_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: only symbols that complete a word at once are left out."""
    denoiser, x_init, within, forbidden, _ = posed((3, "3313", ["01", "12", "2"], None))
    avoid = WordAutomaton.build(forbidden, 3)

    def shortsighted(self: Completions, x_t: Tensor, where: Tensor) -> Tensor:
        kept = torch.ones(int(where.sum()), 3, dtype=torch.bool)
        for number, (row, place) in enumerate(where.nonzero().tolist()):
            for symbol in range(3):
                filled = x_t[row].clone()
                filled[place] = symbol
                kept[number, symbol] = clean(tuple(filled.tolist()), forbidden)
        return kept

    found = outcomes(FirstHittingSampler(), denoiser, x_init, allowed=within, avoid=avoid)
    assert set(found.distribution) == {(1, 1, 1, 0), (1, 1, 1, 1)}
    monkeypatch.setattr(Completions, "symbols", shortsighted)
    with pytest.raises(ValueError, match="must give an allowed symbol a probability above 0"):
        outcomes(FirstHittingSampler(), denoiser, x_init, allowed=within, avoid=avoid)


FORBIDDEN = words("00", "12", "2[01]2", "021")
EVERY = WordAutomaton.build(FORBIDDEN, 3)


def check_rows(tokens: Tensor, x_init: Tensor) -> None:
    assert ((tokens == x_init) | (x_init == 3)).all()
    assert all(clean(tuple(row), FORBIDDEN) for row in tokens.tolist())
    assert len({tuple(row) for row in tokens.tolist()}) > 3


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)
def test_no_sampler_writes_a_forbidden_word(sampler: Sampler) -> None:
    x_init = torch.full((200, 9), 3)
    x_init[::2, 4] = 2
    x_init[::3, 7] = 0
    drawn = sampler.sample(masked_model(Neighbours()), x_init, seeds=torch.arange(200), avoid=EVERY)
    check_rows(drawn.tokens, x_init)
    free = sampler.sample(masked_model(Neighbours()), x_init, seeds=torch.arange(200))
    broken = [not clean(tuple(row), FORBIDDEN) for row in free.tokens.tolist()]
    assert sum(broken) > 100, "without them most rows hold one"


@pytest.mark.parametrize("process", [Uniform(3), Hybrid(3, 0.5)], ids=repr)
@pytest.mark.parametrize(
    "sampler",
    [
        AncestralSampler(6),
        TauLeapingSampler(6),
        TweedieSampler(6),
        PredictorCorrectorSampler(4),
        GibbsSampler(4),
    ],
    ids=lambda s: type(s).__name__,
)
def test_noisy_tokens_are_restricted_in_every_step(sampler: Sampler, process) -> None:
    denoiser = Denoiser(NoisyTable(lambda z, t: torch.zeros(*z.shape, 3).double(), 3), process)
    x_init = torch.full((100, 7), 3)
    x_init[::2, 3] = 2
    allowed = torch.ones(100, 7, 3, dtype=torch.bool)
    allowed[:, 0, 0] = False
    seen: list[Tensor] = []
    drawn = sampler.sample(
        denoiser,
        x_init,
        seeds=torch.arange(100),
        avoid=EVERY,
        allowed=allowed,
        callback=lambda step, x: seen.append(x.clone()),
    )
    check_rows(drawn.tokens, x_init)
    assert (drawn.tokens[:, 0] != 0).all()
    for x in seen:
        assert all(clean(tuple(row), FORBIDDEN) for row in x.tolist())


def test_a_block_knows_the_tokens_of_the_others() -> None:
    k, length = 3, 6
    denoiser = block_denoiser(BlockLookup(k, length, seed=3), 2)
    x_init = torch.full((150, length), k)
    x_init[::2, 4] = 2  # in the last block; 12 and 2[01]2 reach back into the one before
    for inner in (FirstHittingSampler(), ConfidenceSampler(), AncestralSampler(2)):
        drawn = BlockSampler(inner).sample(denoiser, x_init, seeds=torch.arange(150), avoid=EVERY)
        check_rows(drawn.tokens, x_init)
    ended = BlockSampler(stop_id=1).sample(
        denoiser, torch.full((150, length), k), seeds=torch.arange(150), avoid=EVERY
    )
    assert ended.length is not None and int(ended.length.min()) < length
    for row, end in zip(ended.tokens.tolist(), ended.length.tolist(), strict=True):
        assert clean(tuple(row[:end]), FORBIDDEN)


def test_windows_and_prompts_know_the_rest_of_the_row() -> None:
    causal = Denoiser(CausalLookup(3, 5, seed=1), LeftToRight(3))
    x_init = torch.full((100, 5), 3)
    x_init[::2, :2] = torch.tensor([0, 2])
    drawn = LeftToRightSampler().sample(causal, x_init, seeds=torch.arange(100), avoid=EVERY)
    check_rows(drawn.tokens, x_init)
    x_init = torch.full((100, 9), 3)
    x_init[:, 8] = 2
    sampler = SemiAutoregressiveSampler(window=4, stride=1)
    drawn = sampler.sample(masked_model(Neighbours()), x_init, seeds=torch.arange(100), avoid=EVERY)
    check_rows(drawn.tokens, x_init)


def test_gaussian_diffusion_decodes_without_a_word(random_model) -> None:  # noqa: F811
    from seqdiff.samplers import GaussianSampler

    avoid = WordAutomaton.build(FORBIDDEN, 4)
    x_init = torch.full((100, 7), 4)
    drawn = GaussianSampler(4).sample(random_model, x_init, seeds=torch.arange(100), avoid=avoid)
    assert all(clean(tuple(row), FORBIDDEN) for row in drawn.tokens.tolist())


def test_truncation_keeps_symbols_that_remain() -> None:
    """With top-k 1 the most likely symbol of those that remain is drawn, never none."""
    x_init = torch.full((50, 9), 3)
    drawn = FirstHittingSampler(top_k=1).sample(
        masked_model(Neighbours()), x_init, seeds=torch.arange(50), avoid=EVERY
    )
    assert all(clean(tuple(row), FORBIDDEN) for row in drawn.tokens.tolist())
    denoiser = Denoiser(NoisyTable(lambda z, t: torch.zeros(*z.shape, 3).double(), 3), Uniform(3))
    with pytest.raises(ValueError, match=r"AncestralSampler.top_k must be left out with words"):
        AncestralSampler(3, top_k=1).sample(denoiser, x_init, seeds=torch.arange(50), avoid=EVERY)


def test_a_word_that_fits_nowhere_changes_nothing() -> None:
    avoid = WordAutomaton.build(words("0" * 10), 3)
    x_init = torch.full((60, 9), 3)
    for sampler in (
        FirstHittingSampler(),
        AncestralSampler(4),
        SMCSampler(reward=lambda x: x[:, 0]),
    ):
        plain, kept = (
            sampler.sample(masked_model(Neighbours()), x_init, seeds=torch.arange(60), avoid=a)
            for a in (None, avoid)
        )
        assert torch.equal(plain.tokens, kept.tokens)


def test_a_word_may_lie_on_both_sides_of_padding() -> None:
    padding = torch.tensor([[False, False, True, False, False, True]]).expand(80, -1)
    x_init = torch.full((80, 6), 3)
    drawn = FirstHittingSampler().sample(
        masked_model(Neighbours()), x_init, seeds=torch.arange(80), avoid=EVERY, padding=padding
    )
    check_rows(drawn.tokens[:, [0, 1, 3, 4]], x_init[:, [0, 1, 3, 4]])


symbols = st.sets(st.integers(0, 2), min_size=1, max_size=3)
some_words = st.lists(st.lists(symbols, min_size=1, max_size=4), min_size=1, max_size=4)
rows = st.lists(st.tuples(st.integers(0, 3), symbols), min_size=1, max_size=6)


def within(row) -> tuple[Tensor, Tensor, list[set[int]]]:
    """A row, the symbols that its positions may take, and the same as sets."""
    allowed = [part | ({token} if token < 3 else set()) for token, part in row]
    mask = torch.tensor([[symbol in part for symbol in range(3)] for part in allowed])
    return torch.tensor([[token for token, _ in row]]), mask[None], allowed


@settings(max_examples=300, deadline=None)
@given(some_words, rows)
def test_symbols_that_remain_are_those_of_clean_fillings(forbidden: list[Word], row) -> None:
    avoid = WordAutomaton.build(forbidden, 3)
    x_t, mask, allowed = within(row)
    x = tuple(x_t[0].tolist())
    good = [y for y in fillings(x, 3, allowed) if clean(y, forbidden)]
    found = Completions.begin(avoid, x_t, mask)
    conflict = found.conflict()
    assert (conflict is None) == bool(good)
    if conflict is not None:
        forced = [
            place
            for word in forbidden
            for place in range(len(x) - len(word) + 1)
            if all(
                ({x[place + i]} if x[place + i] < 3 else allowed[place + i]) <= part
                for i, part in enumerate(word)
            )
        ]
        assert (conflict.word is not None) == bool(forced)
        assert conflict.position == min(forced, default=conflict.position)
        return
    where = x_t == 3
    kept = found.symbols(x_t, where) & mask[where]
    for place, symbols_left in zip(distributions.masked(x, 3), kept.tolist(), strict=True):
        assert {s for s, left in enumerate(symbols_left) if left} == {y[place] for y in good}


@settings(max_examples=150, deadline=None)
@given(some_words, st.lists(rows, min_size=1, max_size=1), st.randoms(use_true_random=False))
def test_states_after_changes_are_those_of_a_new_start(forbidden, batch, random) -> None:
    """Tokens are written and masked again in any order; padding is skipped."""
    avoid = WordAutomaton.build(forbidden, 3)
    x_t, mask, _ = within(batch[0])
    x_t, mask = x_t.expand(3, -1).clone(), mask.expand(3, -1, -1)
    padding = torch.tensor([[random.random() < 0.2 for _ in row] for row in x_t.tolist()])
    kept = Completions.begin(avoid, x_t, mask, padding)
    view = kept.take(torch.tensor([2, 0])).window(1)
    for _ in range(4):
        for row, place in itertools.product(range(3), range(x_t.shape[1])):
            if random.random() < 0.4:
                x_t[row, place] = random.randrange(4)
        view.update(x_t[[2, 0], 1:])
        kept.update(x_t)
        fresh = Completions.begin(avoid, x_t, mask, padding)
        assert torch.equal(kept.ahead, fresh.ahead) and torch.equal(kept.behind, fresh.behind)


@settings(max_examples=150, deadline=None)
@given(some_words)
def test_the_automaton_reads_what_re_reads_with_the_fewest_states(forbidden: list[Word]) -> None:
    avoid = WordAutomaton.build(forbidden, 3)
    moves, class_of = avoid.moves.tolist(), avoid.class_of.tolist()

    def read(x: Tokens, state: int = 0) -> int:
        for symbol in x:
            if state == len(moves):
                break
            state = moves[state][class_of[symbol]]
        return state

    reached = set()
    for x in itertools.chain(*(itertools.product(range(3), repeat=n) for n in range(6))):
        state = read(x)
        assert (state < len(moves)) == clean(x, forbidden)
        reached.add(state)
    assert reached | {len(moves)} == set(range(len(moves) + 1)), "no state is out of reach"
    tails = [x for n in range(5) for x in itertools.product(range(3), repeat=n)]
    futures = [
        tuple(read(tail, state) < len(moves) for tail in tails) for state in range(len(moves))
    ]
    assert len(set(futures)) == len(futures), "no two states accept the same continuations"


def test_sizes_of_automata_by_hand() -> None:
    """A word needs a state for each proper prefix; GAATTC on both strands is one word."""
    site = words("200331")
    assert WordAutomaton.build(site, 4).num_states == 6
    runs = words(*(str(symbol) * 5 for symbol in range(4)))
    assert WordAutomaton.build(runs, 4).num_states == 1 + 4 * 4
    assert WordAutomaton.build(words("0[0123]1", "031"), 4).num_states == 4, "031 is superfluous"
    assert WordAutomaton.build(words("[01]2"), 4).moves.shape == (2, 3), "0 and 1 are one class"


@pytest.mark.parametrize(
    ("forbidden", "names", "message"),
    [
        ([], None, "words must hold a word, got none"),
        ([[]], ["x"], "words must hold a symbol at every position, got 'x' with none"),
        ([[{0}, set()]], None, "words must hold a symbol at every position, got '0 ' with none"),
        ([[{0}, {4}]], None, r"words must hold ids in 0..3, got 4 at position 1 of '0 4'"),
        ([[{0}]], ["x", "y"], "names must hold one name for each of 1 words, got 2"),
        (
            [[{0}, *[{0, 1, 2, 3}] * 14, {1}]],
            None,
            "words must need at most 10,000 states, got more",
        ),
    ],
)
def test_words_that_are_none_are_named(forbidden, names, message: str) -> None:
    with pytest.raises(ValueError, match=f"WordAutomaton.{message}"):
        WordAutomaton.build(forbidden, 4, names)


def test_what_cannot_be_filled_is_named_before_the_network_is_called() -> None:
    denoiser = masked_model(Neighbours())
    avoid = WordAutomaton.build(FORBIDDEN, 3, ["AA", "CG", "GMG", "AGC"])

    def sample(x_init: Tensor, **options) -> None:
        FirstHittingSampler().sample(
            denoiser, x_init, seeds=torch.arange(len(x_init)), avoid=avoid, **options
        )

    x_init = torch.full((2, 6), 3)
    x_init[1, 2:4] = torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r"fill every row, got the word CG at row 1, position 2;"):
        sample(x_init)
    allowed = torch.ones(2, 6, 3, dtype=torch.bool)
    allowed[0, 1:4, :] = torch.tensor([[0, 0, 1], [1, 1, 0], [0, 0, 1]]).bool()
    with pytest.raises(ValueError, match="got the word GMG at row 0, position 1;"):
        sample(torch.full((2, 6), 3), allowed=allowed)
    allowed[0, 1:4, :] = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1]]).bool()
    allowed[0, 0, :] = torch.tensor([1, 1, 0]).bool()
    allowed[0, 4, :] = torch.tensor([0, 1, 0]).bool()  # AA, or ..AGC, whatever is chosen
    with pytest.raises(ValueError, match="every row, got none at row 0, position 4;"):
        sample(torch.full((2, 6), 3), allowed=allowed)
    with pytest.raises(ValueError, match="over the 3 symbols of the model, got words over 4"):
        FirstHittingSampler().sample(
            denoiser,
            x_init,
            seeds=torch.arange(2),
            avoid=WordAutomaton.build(FORBIDDEN, 4),
        )
    assert not denoiser.backbone.seen


def test_a_sampler_that_does_not_ask_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got broken_batch_noise, which wrote .* choose from anc"):
        BrokenBatchNoise().sample(
            masked_model(Neighbours()), torch.full((50, 9), 3), seeds=torch.arange(50), avoid=EVERY
        )
