"""N-gram tables and their mixture against counting by hand."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from seqdiff.backbones import AutoregressiveTransformer, Caduceus, Transformer
from seqdiff.denoiser import Denoiser
from seqdiff.experts import ExpertsConfig, NGramExperts, NGramTable, chain, mixture, ngrams
from seqdiff.ops.ngram_chain import chain_posterior, cpu_kernels
from seqdiff.process import Absorbing, Blockwise, LeftToRight, Uniform
from seqdiff.schedules import LogLinear
from seqdiff.types import Inputs

K, ORDER, LENGTH = 3, 3, 9
COMPLEMENT = (2, 1, 0)


@pytest.fixture(params=["dense", "sparse"], autouse=True)
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep all words, or only those that occur; numbers are chosen on four parts of the rows."""
    monkeypatch.setattr(mixture, "_PARTS", 4)
    if request.param == "sparse":
        monkeypatch.setattr(ngrams, "_MOST_DENSE", 1)
        monkeypatch.setattr(chain, "_MOST_DENSE", K**2)
        monkeypatch.setattr(chain, "_MOST_NUMBERS", 0)
        monkeypatch.setattr(ngrams, "_MERGED_TOKENS", 40)
    return request.param


def some_rows(number: int, seed: int = 0) -> np.ndarray:
    """Rows in which a token often repeats the second one before it; K is unknown."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, K + 1, (number, LENGTH))
    for i in range(2, LENGTH):
        rows[:, i] = np.where(rng.random(number) < 0.6, rows[:, i - 2], rows[:, i])
    return rows


def words(rows: np.ndarray, *, both_strands: bool = False) -> Counter[tuple[int, ...]]:
    """Count the words of up to ORDER + 1 known tokens, one at a time."""
    found: Counter[tuple[int, ...]] = Counter()
    table = [*COMPLEMENT, K]
    for row in rows.tolist():
        for way in (row, [table[x] for x in row[::-1]]) if both_strands else (row,):
            for size in range(1, ORDER + 2):
                for first in range(len(way) - size + 1):
                    word = tuple(way[first : first + size])
                    if K not in word:
                        found[word] += 1
    return found


def expected(
    found: Counter[tuple[int, ...]],
    numbers: Sequence[tuple[float, float]],
    context: tuple[int, ...],
) -> np.ndarray:
    """The distribution after a context, its last token last."""
    probs = np.full(K, 1 / K)
    for k in range(len(context) + 1):
        end = context[len(context) - k :]
        counts = np.array([found[(*end, x)] for x in range(K)])
        d, m = numbers[k]
        passed = m + d * (counts > 0).sum()
        probs = (np.maximum(counts - d, 0) + passed * probs) / (counts.sum() + m)
    return probs


def count(
    rows: np.ndarray, order: int = ORDER, *, complement: bool = False, sizes: Sequence[int] = ()
) -> NGramExperts:
    """Count with any gates, those of a mixture that has been fitted."""
    pair = COMPLEMENT if complement else None
    experts = NGramExperts(K, ExpertsConfig(order), pair, sizes)
    experts.count(len(rows), lambda part: (rows[part], rows[part] < K))
    draws = torch.Generator().manual_seed(0)
    for gates in experts.buffers():
        gates.uniform_(0.5, 1.5, generator=draws)
    return experts


def numbers(table: NGramTable) -> list[tuple[float, float]]:
    """The discount and the concentration of each order."""
    return list(zip(table.discounts, table.concentrations, strict=True))


def tables(experts: NGramExperts) -> tuple[NGramTable, NGramTable]:
    assert experts._tables is not None
    return experts._tables


def contexts() -> Iterator[tuple[int, ...]]:
    for size in range(ORDER + 1):
        yield from itertools.product(range(K), repeat=size)


def ask(table: NGramTable, context: tuple[int, ...]) -> np.ndarray:
    digits = torch.zeros(1, ORDER, dtype=torch.int64)
    digits[0, : len(context)] = torch.tensor(context[::-1])
    return table.probs(digits, torch.tensor([len(context)]))[0].numpy()


def test_a_table_is_counting_by_hand() -> None:
    """The reversed rows are the second table."""
    rows = some_rows(40)
    forward, backward = tables(count(rows))
    for table, one in ((forward, rows), (backward, rows[:, ::-1])):
        table.discounts = (0.25, 0.0, 0.75, 0.9)
        found = words(one)
        for context in contexts():
            wanted = expected(found, numbers(table), context)
            np.testing.assert_allclose(ask(table, context), wanted, rtol=1e-5)
    found = words(rows[:30])  # a broken twin, which leaves a part out
    wrong = expected(found, numbers(forward), (0, 1))
    assert not np.allclose(ask(forward, (0, 1)), wrong, rtol=1e-5)


def test_both_strands_are_one_table() -> None:
    rows = some_rows(40)
    forward, backward = tables(count(rows, complement=True))
    assert forward is backward
    found = words(rows, both_strands=True)
    for context in contexts():
        wanted = expected(found, numbers(forward), context)
        np.testing.assert_allclose(ask(forward, context), wanted, rtol=1e-5)


def test_numbers_have_the_highest_likelihood_of_left_out_parts(monkeypatch) -> None:
    monkeypatch.setattr(ngrams, "_CONCENTRATIONS", (0.5, 4.0, 32.0))
    monkeypatch.setattr(ngrams, "_DISCOUNTS", (0.0, 0.5, 0.9))
    monkeypatch.setattr(ngrams, "_FOLLOWERS", 40)
    rows = some_rows(40)
    forward, _ = tables(count(rows))
    chosen: list[tuple[float, float]] = []
    for k in range(ORDER + 1):
        nats = {}
        for pair in itertools.product((0.0, 0.5, 0.9), (0.5, 4.0, 32.0)):
            total = 0.0
            for part in range(4):
                own = rows[10 * part : 10 * part + 10]
                found = words(np.concatenate((rows[: 10 * part], rows[10 * part + 10 :])))
                for row in own.tolist():
                    for i, token in enumerate(row):
                        before = row[max(0, i - k) : i]
                        known = next((j for j, x in enumerate(before[::-1]) if x == K), k)
                        context = tuple(before[len(before) - min(known, len(before)) :])
                        if token < K and len(context) == k:
                            total -= np.log(expected(found, [*chosen, pair], context)[token])
            nats[pair] = total
        chosen.append(min(nats, key=lambda pair: nats[pair]))
    assert numbers(forward) == chosen
    assert len({d for d, _ in chosen}) > 1, "a case in which discounts differ"


def test_tables_survive_saving() -> None:
    experts = count(some_rows(40))
    other = NGramExperts(K, ExpertsConfig(ORDER))
    other.load_state_dict(experts.state_dict())
    for one, two in zip(tables(experts), tables(other), strict=True):
        assert numbers(one) == numbers(two)
        for context in contexts():
            assert np.array_equal(ask(one, context), ask(two, context))
    assert torch.equal(other.get_extra_state(), experts.get_extra_state())


@pytest.mark.parametrize("complement", [False, True])
def test_tables_that_are_too_large_lose_their_longest_words(
    complement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "_MOST_DENSE", 1 << 22)
    rows, pair = some_rows(400), COMPLEMENT if complement else None
    smaller = count(rows, ORDER - 1, complement=complement)
    monkeypatch.setattr(mixture, "_MOST_BYTES", len(smaller.get_extra_state()))
    experts = count(rows, complement=complement)
    assert (experts.order, experts.table_order) == (ORDER, ORDER - 1)
    assert torch.equal(experts.get_extra_state(), smaller.get_extra_state())
    for one, two in zip(tables(experts), tables(smaller), strict=True):
        for context in contexts():
            assert np.array_equal(ask(one, context), ask(two, context[-ORDER + 1 :]))
    for model in (experts, smaller):
        for gates in model.buffers():
            gates.fill_(1)
    other = NGramExperts(K, ExpertsConfig(ORDER), pair)
    other.load_state_dict(experts.state_dict())
    assert other.table_order == ORDER - 1
    tokens = torch.tensor(some_rows(6, seed=1))
    outputs = torch.zeros(*tokens.shape, K)
    found = [model(outputs, tokens, None) for model in (experts, other, smaller)]
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], found[2])  # gates of 1 for every length


def frequent(
    found: Counter[tuple[int, ...]], most: int, least: int = 1
) -> tuple[Counter[tuple[int, ...]], int]:
    """Keep words after at most ``most`` contexts of a length, which occur ``least`` times."""
    kept = Counter({word: number for word, number in found.items() if len(word) == 1})
    for k in range(1, ORDER + 1):
        contexts = {word: number for word, number in found.items() if len(word) == k}
        while sum(number >= least for number in contexts.values()) > most:
            least *= 2
        for word, number in found.items():
            if len(word) == k + 1 and contexts[word[:-1]] >= least:
                kept[word] = number
    return kept, least


@pytest.mark.parametrize("complement", [False, True])
def test_words_after_rare_contexts_are_left_out(
    complement: bool, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain has the same probabilities as the table, and a smaller table is another count."""
    full = 2 if storage == "dense" else 1  # the length up to which all words are counted
    monkeypatch.setattr(ngrams, "_MOST_DENSE", K**2 if storage == "dense" else 1)
    monkeypatch.setattr(ngrams, "_MOST_CONTEXTS", 6)
    rows = some_rows(40)
    experts = count(rows, complement=complement)
    found = words(rows, both_strands=complement)
    for table, sign in zip(tables(experts), (1, -1), strict=True):
        counts = found if complement else words(rows[:, ::sign])
        kept, least = frequent(counts, 6)
        assert K < len(kept) < len(counts)
        for context in contexts():
            probs = expected(kept, numbers(table), context)
            np.testing.assert_allclose(ask(table, context), probs, rtol=1e-5)
            ends = torch.zeros(1, dtype=torch.int64), torch.tensor([len(context) + 1])
            row = torch.tensor([[*context, K]])
            at_end = chain_posterior(table.chain, row, *ends, 9, 9)[0, -1]
            np.testing.assert_allclose(at_end.numpy(), probs, rtol=1e-5)
        (smaller,) = ngrams.smaller([table])
        assert smaller.order == ORDER
        wanted, _ = frequent(counts, 6, 2 * least)
        assert len(wanted) < len(kept)
        for context in contexts():
            probs = expected(wanted, numbers(table), context)
            np.testing.assert_allclose(ask(smaller, context), probs, rtol=1e-5)
        while smaller.order == ORDER:
            (smaller,) = ngrams.smaller([smaller])
        short = Counter({word: counts[word] for word in counts if len(word) <= full})
        probs = expected(short, numbers(table), (0, 1, 2))
        np.testing.assert_allclose(ask(smaller, (0, 1, 2)), probs, rtol=1e-5)


def test_a_smaller_table_keeps_contexts_that_are_just_frequent_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 01, which occurs twice, and not after 02, which occurs once."""
    monkeypatch.setattr(ngrams, "_MOST_DENSE", 1)
    rows = np.array([[0, 1, 2], [0, 1, 2], [0, 2, 1]])
    table, _ = tables(count(rows))
    (smaller,) = ngrams.smaller([table])
    kept, _ = frequent(words(rows), 99, 2)
    assert (0, 1, 2) in kept and (0, 2, 1) not in kept
    for context in contexts():
        wanted = expected(kept, numbers(table), context)
        np.testing.assert_allclose(ask(smaller, context), wanted, rtol=1e-5)


@pytest.mark.parametrize("number", [2**8, 2**15])
def test_counts_that_exceed_a_type_are_whole(number: int) -> None:
    rows = np.repeat([[0, 0, 1, 2]], number // 2, axis=0)
    table, _ = tables(count(rows))
    found = words(rows)
    assert found[(0,)] == number
    for context in ((), (0,), (0, 0)):
        wanted = expected(found, numbers(table), context)
        np.testing.assert_allclose(ask(table, context), wanted, rtol=1e-5)


def test_both_tables_lose_the_same_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards, all long words follow one context, which stays frequent for longer."""
    monkeypatch.setattr(ngrams, "_MOST_DENSE", 16)
    rows = np.array([[x % 3 + 1, 0, 0] for x in range(60)])
    whole = NGramExperts(4, ExpertsConfig(2))
    whole.count(len(rows), lambda part: (rows[part], rows[part] < 4))
    orders = set()
    for most in range(len(whole.get_extra_state()), 0, -30):
        monkeypatch.setattr(mixture, "_MOST_BYTES", most)
        experts = NGramExperts(4, ExpertsConfig(2))
        experts.count(len(rows), lambda part: (rows[part], rows[part] < 4))
        forward, backward = tables(experts)
        assert forward.order == backward.order
        orders.add(forward.order)
        NGramExperts(4, ExpertsConfig(2)).load_state_dict(experts.state_dict())
    assert orders == {0, 1, 2}


@pytest.mark.parametrize("complement", [False, True])
def test_tables_follow_the_module_to_another_device(complement: bool) -> None:
    experts = count(some_rows(20), complement=complement).to("meta")
    assert all(table.device == torch.device("meta") for table in tables(experts))
    assert (tables(experts)[0] is tables(experts)[1]) == complement


def test_a_state_without_tables_removes_those_that_are_there() -> None:
    experts = count(some_rows(40))
    experts.load_state_dict(NGramExperts(K, ExpertsConfig(ORDER)).state_dict())
    assert not experts.counted
    assert not len(experts.get_extra_state())


def test_a_chain_needs_the_end_of_every_word() -> None:
    """Without an entry, the kernel would read outside of its arrays."""
    levels = [(np.array([0, 1]), np.array([3, 3]))]
    levels += [(np.arange(2**k), np.full(2**k, 2)) for k in (2, 3)]
    numbers = [0.5] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "_MOST_DENSE", 1)
        chain.chain_arrays(levels, numbers, numbers, 2)
        for missing in (slice(1, None), slice(None, -1), [0, 1, 3]):  # the ends 00, 11 and 10
            broken = [levels[0], tuple(part[missing] for part in levels[1]), levels[2]]
            with pytest.raises(ValueError, match=r"lacks the end of a word"):
                chain.chain_arrays(broken, numbers, numbers, 2)


def test_damaged_tables_are_found_or_the_same() -> None:
    """A zip file has bytes without effect, such as dates."""
    experts, refused = count(some_rows(40)), 0
    state = experts.get_extra_state()
    for place in range(0, len(state), 7):
        changed = state.clone()
        changed[place] ^= 0xFF
        other = NGramExperts(K, ExpertsConfig(ORDER))
        try:
            other.set_extra_state(changed)
        except ValueError as error:
            assert "damaged" in str(error)
            refused += 1
        else:
            for one, two in zip(tables(experts), tables(other), strict=True):
                assert np.array_equal(ask(one, (0, 1)), ask(two, (0, 1)))
    assert refused > len(state) / 14
    other = NGramExperts(K, ExpertsConfig(ORDER))
    longer = state.clone()
    longer[9:17] = torch.tensor([len(state)]).view(torch.uint8)  # the size of the second table
    for changed in (state[:-1], state[:9], longer):
        with pytest.raises(ValueError, match="damaged"):
            other.set_extra_state(changed)


@pytest.mark.parametrize("context", ["row", "block", "prefix"])
def test_empty_rows_have_no_terms(context: mixture.Context) -> None:
    experts, empty = count(some_rows(40)), torch.zeros(2, 0, dtype=torch.int64)
    terms = experts.terms(empty, None, context=context, block_size=3)
    assert [part.shape for part in terms] == [(0, K), (0, K), (0,), (0, 2)]


def chain_by_hand(
    found: Counter[tuple[int, ...]], table: NGramTable, x: Sequence[int], i: int
) -> np.ndarray:
    """The token at i in a chain, given the others: the sum over all that may be masked."""
    total = np.zeros(K)
    places = [range(K) if j == i or token == K else (token,) for j, token in enumerate(x)]
    after = cache(lambda context: expected(found, numbers(table), context))
    for row in itertools.product(*places):
        total[row[i]] += np.prod([after(row[max(0, j - ORDER) : j])[row[j]] for j in range(len(x))])
    return total / total.sum()


def by_hand(
    experts: NGramExperts,
    rows: np.ndarray,
    x: Sequence[int],
    i: int,
    outputs: np.ndarray | None,
) -> np.ndarray:
    """Log-probabilities at a position that sees the visible tokens of a row.

    They are those of the mixture with the outputs of a network, or of the experts alone.
    """
    forward, backward = tables(experts)
    strands = experts.complement is not None
    ahead, back = words(rows, both_strands=strands), words(rows[:, ::-1], both_strands=strands)
    one = two = expected(ahead, numbers(forward), ())
    base = np.log(one)
    if x[i] == K:
        one = chain_by_hand(ahead, forward, x, i)
        two = chain_by_hand(back, backward, x[::-1], len(x) - 1 - i)
    near = [*x[max(0, i - ORDER) : i], *x[i + 1 : i + 1 + ORDER]]
    logits = np.log((one + two) / 2)
    if outputs is not None:
        seen = sum(token < K for token in near)
        scale, unigram, gate = coefficients(experts, one, two, seen)
        logits = scale * outputs + unigram * base + gate * (logits - base)
    return logits - np.logaddexp.reduce(logits)


def coefficients(
    experts: NGramExperts, one: np.ndarray, two: np.ndarray, seen: int
) -> tuple[float, float, float]:
    """What the outputs, log u, and log p - log u are multiplied by."""
    p, knots = (one + two) / 2, np.linspace(0, 1, 9)
    measures = -(p * np.log(p)).sum() / np.log(len(p)), np.abs(one - two).sum() / 2
    scales, gates = experts.scale[0].numpy(), experts.gates[0].numpy()
    scale, gate = scales[0], gates[1 + seen]
    for measure, of_scale, of_gate in zip(
        measures, scales[1:].reshape(2, 9), gates[2 + 2 * ORDER :].reshape(2, 9), strict=True
    ):
        scale += np.interp(measure, knots, of_scale)
        gate += np.interp(measure, knots, of_gate)
    return scale, gates[0], gate


@pytest.mark.parametrize("complement", [False, True])
def test_the_mixture_is_that_of_the_network_and_both_chains(complement: bool) -> None:
    """Without the network, it is that of both chains."""
    rows = some_rows(40)
    experts = count(rows, complement=complement)
    visible = torch.tensor(some_rows(6, seed=1))
    where = visible == K
    for measure in experts.terms(visible, where).uncertainty.unbind(dim=1):
        assert float(measure.max() - measure.min()) > 1 / 8, "more than the distance of two knots"
    outputs = torch.randn(int(where.sum()), K)
    found = experts(outputs, visible, where).log_softmax(dim=-1)
    with experts.only("experts"):
        alone = experts(outputs, visible, where).log_softmax(dim=-1)
    for n, (b, i) in enumerate(where.nonzero().tolist()):
        wanted = by_hand(experts, rows, visible[b].tolist(), i, outputs[n].numpy())
        np.testing.assert_allclose(found[n].numpy(), wanted, atol=1e-5)
        wanted = by_hand(experts, rows, visible[b].tolist(), i, None)
        np.testing.assert_allclose(alone[n].numpy(), wanted, atol=1e-5)


def test_masked_diffusion_by_a_chain_has_the_bound_of_the_chain() -> None:
    """In every order the probabilities of a row's tokens multiply to that from left to right."""
    rows = some_rows(40)
    experts = count(rows)
    forward, _ = tables(experts)
    row = torch.tensor([[0, 1, 0, 2, 0, 2, 1]])
    found, x = words(rows), row[0].tolist()
    wanted = sum(
        np.log(expected(found, numbers(forward), tuple(x[max(0, i - ORDER) : i]))[x[i]])
        for i in range(len(x))
    )

    def total(order: Sequence[int], beam: int = 64) -> float:
        visible, nats = torch.full_like(row, K), 0.0
        for place in order:
            start, stop = torch.zeros(1, dtype=torch.int64), torch.tensor([len(x)])
            probs = chain_posterior(forward.chain, visible, start, stop, beam, beam)[0, place]
            nats += float(probs[x[place]].log())
            visible[0, place] = x[place]
        return nats

    orders = ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 5, 2, 4])
    assert [total(order) for order in orders] == pytest.approx([wanted] * 3, abs=1e-4)
    broken = [total(order, beam=1) for order in orders]  # the last tokens are forgotten
    assert max(broken) - min(broken) > 0.01


def test_rows_that_contradict_the_chain_have_distributions() -> None:
    """After 40 tokens of a repeat, what the other tokens say is below float32's range."""
    patterns = ["10100110", "00101001", "10", "11010", "0010", "010", "111000"]
    rows = np.stack([np.tile([int(c) for c in pattern], 40)[:40] for pattern in patterns] * 1000)
    experts = NGramExperts(2, ExpertsConfig(16))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < 2))
    rng = np.random.default_rng(0)
    mixed = rows[rng.integers(0, len(rows), 400)]
    for row in mixed:
        for first in rng.integers(0, 30, 3):
            row[first:] = rows[rng.integers(len(rows))][: 40 - first]
    visible = torch.tensor(np.where(rng.random(mixed.shape) < 0.35, 2, mixed))
    terms = experts.terms(visible, visible == 2)
    total = (terms.base + terms.chain).exp().sum(dim=-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_of_visible_tokens_experts_say_nothing() -> None:
    experts = count(some_rows(40))
    visible = torch.tensor(some_rows(6, seed=1))
    terms, asked = experts.terms(visible, None), experts.terms(visible, visible == K)
    masked = (visible == K).flatten()
    assert float(terms.chain[~masked].abs().max()) < 1e-6
    for one, two in zip(terms, asked, strict=True):
        assert torch.equal(one[masked], two)


def test_tokens_before_the_first_one_are_not_seen() -> None:
    experts = count(some_rows(40))
    visible = torch.tensor(some_rows(6, seed=1))
    ahead = torch.cat((torch.zeros(6, 4, dtype=torch.int64), visible), dim=1)
    where = visible == K
    shifted = torch.cat((torch.zeros(6, 4, dtype=torch.bool), where), dim=1)
    found = zip(experts.terms(ahead, shifted, absent=4), experts.terms(visible, where), strict=True)
    for one, two in found:
        assert torch.equal(one, two)


def test_a_long_row_is_a_hidden_markov_model() -> None:
    """Forward and backward passes in float64, whose states are the last two tokens."""
    rows = some_rows(40)
    table, _ = tables(count(rows, order=2))
    found = words(rows)
    x = np.concatenate(some_rows(70, seed=1)).tolist()
    after = cache(lambda state: expected(found, numbers(table), state))
    forward: list[dict[tuple[int, ...], float]] = [{(): 1.0}]
    for token in x:
        reached: dict[tuple[int, ...], float] = {}
        for state, weight in forward[-1].items():
            for y in range(K) if token == K else (token,):
                new = (*state, y)[-2:]
                reached[new] = reached.get(new, 0.0) + weight * after(state)[y]
        total = sum(reached.values())
        forward.append({state: weight / total for state, weight in reached.items()})
    wanted, backward = np.zeros((len(x), K)), dict.fromkeys(forward[-1], 1.0)
    for i in reversed(range(len(x))):
        before = dict.fromkeys(forward[i], 0.0)
        for state, weight in forward[i].items():
            for y in range(K) if x[i] == K else (x[i],):
                joint = after(state)[y] * backward[(*state, y)[-2:]]
                before[state] += joint
                wanted[i, y] += weight * joint
        wanted[i] /= wanted[i].sum()
        most = max(before.values())
        backward = {state: weight / most for state, weight in before.items()}
    ends = torch.zeros(1, dtype=torch.int64), torch.tensor([len(x)])
    probs = chain_posterior(table.chain, torch.tensor([x]), *ends, 9, 9)[0].numpy()
    masked = np.array(x) == K
    np.testing.assert_allclose(probs[masked], wanted[masked], atol=1e-6)
    assert not probs[~masked].any()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_may_be_shorter_than_the_order(length: int) -> None:
    """Then no context is as long, and longer orders change nothing."""
    rows = some_rows(40)[:, :length]
    visible = torch.tensor(some_rows(6, seed=1))
    probs = [count(rows, order).terms(visible, visible == K).chain for order in (2, ORDER, 6)]
    torch.testing.assert_close(probs[1], probs[2], atol=1e-4, rtol=0)
    if length < 3:
        torch.testing.assert_close(probs[0], probs[1], atol=1e-4, rtol=0)


def test_all_states_of_the_longest_length_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 states by 5 symbols are many, but no state has to be forgotten."""
    monkeypatch.setattr(chain, "_MOST_DENSE", 125)
    rng = np.random.default_rng(0)
    rows = np.cumsum(rng.choice(5, (400, LENGTH), p=[0.8, 0.1, 0.06, 0.03, 0.01]), axis=1) % 5
    experts = NGramExperts(5, ExpertsConfig(2))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < 5))
    visible = torch.tensor(np.where(rng.random((60, LENGTH)) < 0.7, 5, rows[:60]))
    ends = torch.zeros(60, dtype=torch.int64), torch.full((60,), LENGTH)
    arrays = tables(experts)[0].chain
    found = [chain_posterior(arrays, visible, *ends, beam, beam) for beam in (24, 25, 400)]
    torch.testing.assert_close(found[1], found[2])
    assert not torch.allclose(found[0], found[2], atol=1e-3)


def test_few_states_approximate_many() -> None:
    """Every number of states gives a distribution; 27 states are all that there are."""
    rows = some_rows(400)
    arrays = tables(count(rows))[0].chain
    visible = torch.tensor(some_rows(30, seed=1)).masked_fill(torch.rand(30, LENGTH) < 0.6, K)
    where = visible == K
    ends = torch.zeros(30, dtype=torch.int64), torch.full((30,), LENGTH)
    found = {n: chain_posterior(arrays, visible, *ends, n, n)[where] for n in (1, 2, 8, 27, 81)}
    for probs in found.values():
        torch.testing.assert_close(probs.sum(dim=-1), torch.ones(len(probs)))
        assert float(probs.min()) > 0
    away = [float((found[beam] - found[81]).abs().mean()) for beam in (1, 2, 8, 27)]
    assert away[0] > away[2] > away[3] == pytest.approx(0, abs=1e-6)
    assert away[0] < 0.2, "forgetting the oldest tokens changes little"


@pytest.mark.parametrize("complement", [False, True])
def test_long_rows_are_cut_into_pieces_that_overlap(
    complement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = count(some_rows(40), complement=complement)
    visible = torch.tensor(some_rows(6, seed=1))
    where = visible == K
    whole = experts.terms(visible, where).chain
    lengths = []

    def counted(chain, rows, *rest):
        lengths.append(rows.shape[1])
        return chain_posterior(chain, rows, *rest)

    monkeypatch.setattr(mixture, "chain_posterior", counted)
    monkeypatch.setattr(mixture, "_MOST_STEPS_KEPT", 4 * experts._beams[0] * K)
    torch.testing.assert_close(experts.terms(visible, where).chain, whole)
    assert set(lengths) == {3 + 2 * 32 * ORDER}, "three pieces of 3 instead of 4, 4 and 1"
    if complement:
        pair = torch.tensor([*COMPLEMENT, K])
        monkeypatch.setattr(mixture, "_OVERLAP", 0)
        for length in range(2, LENGTH + 1):
            part, other = visible[:, :length], pair[visible[:, :length].flip(1)]
            full = torch.ones_like(part, dtype=torch.bool)
            one, two = (experts.terms(z, full).chain.view(6, length, K) for z in (part, other))
            torch.testing.assert_close(one, two.flip(1)[..., list(COMPLEMENT)])
    monkeypatch.setattr(mixture, "_OVERLAP", 0)
    assert not torch.allclose(experts.terms(visible, where).chain, whole, atol=0.01)


def rows_of_a_chain(
    rng: np.random.Generator, symbols: int, spread: float, shape: tuple[int, int]
) -> np.ndarray:
    """Rows of a random chain of order 4; the smaller the spread, the fewer tokens follow."""
    follow = rng.dirichlet([spread] * symbols, size=symbols**4)
    rows = np.zeros(shape, dtype=np.int64)
    for row in rows:
        state = int(rng.integers(0, symbols**4))
        for i in range(len(row)):
            row[i] = rng.choice(symbols, p=follow[state])
            state = (symbols * state + row[i]) % symbols**4
    return rows


def few_states_by_hand(
    table: NGramTable,
    contexts: set[tuple[int, ...]] | None,
    x: Sequence[int],
    symbols: int,
    beam: int,
    wide: int,
    tail: int,
) -> np.ndarray:
    """The posterior of unknown tokens if unlikely states forget.

    States longer than ``tail`` are those in ``contexts``, or all.
    """
    order, end = table.order, len(x)

    def longest(state: tuple[int, ...]) -> tuple[int, ...]:
        state = cut(state, order)
        while contexts is not None and len(state) > tail and state not in contexts:
            state = state[1:]
        return state

    @cache
    def after(state: tuple[int, ...]) -> np.ndarray:
        digits = torch.zeros(1, order, dtype=torch.int64)
        digits[0, : len(state)] = torch.tensor(state[::-1])
        return table.probs(digits, torch.tensor([len(state)]))[0].double().numpy()

    def cut(state: tuple[int, ...], size: int) -> tuple[int, ...]:
        return state[max(0, len(state) - size) :]

    def possible(i: int) -> Sequence[int]:
        return range(symbols) if x[i] == symbols else (x[i],)

    tails = [t for size in range(tail + 1) for t in itertools.product(range(symbols), repeat=size)]
    coming = [dict.fromkeys(tails, 1.0)]
    for i in reversed(range(end)):
        then = coming[0]
        coming.insert(
            0, {t: sum(after(t)[y] * then[cut((*t, y), tail)] for y in possible(i)) for t in tails}
        )

    states, steps = [{(): 1.0}], []
    for i in range(end):
        most = beam if i + 1 < end and x[i + 1] == symbols else wide
        known = [(state, y) for state in states[-1] for y in possible(i)]
        mass = [states[-1][state] * after(state)[y] for state, y in known]
        ahead = [coming[i + 1][cut((*state, y), tail)] for state, y in known]
        least = 0.0
        if x[i] == symbols and len(known) > 4 * beam:
            worth = [weight * coming[i][cut(state, tail)] for state, weight in states[-1].items()]
            least = sum(worth) / 16 / most
        reached: dict[tuple[int, ...], float] = {}
        for (state, y), m, later in zip(known, mass, ahead, strict=True):
            if m * later >= least:
                to = longest((*state, y))
                reached[to] = reached.get(to, 0.0) + m
        worths = {to: m * coming[i + 1][cut(to, tail)] for to, m in reached.items()}
        bound = sum(worths.values()) / most / 1600 if len(worths) > most else 0.0
        while sum(worth >= bound for worth in worths.values()) > most:
            bound *= 1.25
        kept: dict[tuple[int, ...], float] = {}
        step = {}
        for (state, y), m, later in zip(known, mass, ahead, strict=True):
            to, factor = longest((*state, y)), 1.0
            if m * later < least or worths[to] < bound:
                to, factor = (), later / coming[i + 1][()]
            kept[to] = kept.get(to, 0.0) + m * factor
            step[state, y] = to, after(state)[y] * factor
        states.append({to: m / sum(kept.values()) for to, m in kept.items()})
        steps.append(step)
    out, later = np.zeros((end, symbols)), dict.fromkeys(states[-1], 1.0)
    for i in reversed(range(end)):
        before = dict.fromkeys(states[i], 0.0)
        for (state, y), (to, chance) in steps[i].items():
            before[state] += chance * later[to]
            out[i, y] += states[i][state] * chance * later[to]
        later = {state: value / max(before.values()) for state, value in before.items()}
    return out / out.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("beam", "wide"), [(2, 2), (4, 4), (5, 20), (16, 64)])
def test_unlikely_states_forget_all_tokens(
    beam: int, wide: int, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tails of two or three tokens estimate what comes, and states have up to four."""
    tail = 3 if storage == "dense" else 2
    monkeypatch.setattr(chain, "_MOST_DENSE", 5**5 if storage == "dense" else 5**3)
    rng = np.random.default_rng(0)
    rows = rows_of_a_chain(rng, 5, 0.2, (300, 40))
    experts = NGramExperts(5, ExpertsConfig(4))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < 5))
    table, contexts = tables(experts)[0], None
    if storage == "sparse":
        contexts = {
            tuple(row[i : i + k]) for row in rows.tolist() for k in (3, 4) for i in range(40 - k)
        }
    visible = np.where(rng.random((6, 40)) < np.linspace(0.3, 0.9, 6)[:, None], 5, rows[:6])
    ends = torch.zeros(6, dtype=torch.int64), torch.full((6,), 40)
    probs = chain_posterior(table.chain, torch.tensor(visible), *ends, beam, wide).numpy()
    for row, found in zip(visible.tolist(), probs, strict=True):
        wanted = few_states_by_hand(table, contexts, row, 5, beam, wide, tail)
        unknown = np.array(row) == 5
        np.testing.assert_allclose(found[unknown], wanted[unknown], atol=1e-5)


def test_few_states_by_hand_with_nine_symbols(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four symbols are added at a time, and one is left."""
    if storage == "sparse":
        monkeypatch.setattr(chain, "_MOST_DENSE", 9**2)
    rng = np.random.default_rng(0)
    rows = rows_of_a_chain(rng, 9, 0.1, (200, 30))
    experts = NGramExperts(9, ExpertsConfig(2))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < 9))
    table, depth = tables(experts)[0], tables(experts)[0].chain.depth
    visible = np.where(rng.random((4, 30)) < 0.6, 9, rows[:4])
    ends = torch.zeros(4, dtype=torch.int64), torch.full((4,), 30)
    probs = chain_posterior(table.chain, torch.tensor(visible), *ends, 6, 20).numpy()
    contexts = {tuple(rows[b, i : i + 2].tolist()) for b in range(200) for i in range(28)}
    for row, found in zip(visible.tolist(), probs, strict=True):
        wanted = few_states_by_hand(table, contexts, row, 9, 6, 20, depth)
        unknown = np.array(row) == 9
        np.testing.assert_allclose(found[unknown], wanted[unknown], atol=1e-5)


def test_rows_of_a_batch_do_not_change_each_other() -> None:
    """Rows with ends of their own, and states that are estimated anew for each."""
    rows = some_rows(400)
    arrays = tables(count(rows))[0].chain
    visible = torch.tensor(some_rows(60, seed=1)).masked_fill(torch.rand(60, LENGTH) < 0.6, K)
    start, stop = torch.randint(0, 4, (60,)), torch.randint(5, LENGTH + 1, (60,))
    found = chain_posterior(arrays, visible, start, stop, 2, 2)
    for b in range(60):
        own = slice(b, b + 1)
        alone = chain_posterior(arrays, visible[own], start[own], stop[own], 2, 2)
        assert torch.equal(found[own], alone)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 15, 16])
def test_equal_states_are_found_within_the_table(number: int) -> None:
    """Python finds what is outside of an array, which the compiled kernel does not."""
    merge = cpu_kernels._merge.py_func
    state = np.random.default_rng(0).integers(0, 1 << 20, number)
    state[number // 2 :] = state[: number - number // 2]
    found, weight, group = state.copy(), np.ones(number), np.empty(number, np.int64)
    size = 1 << max(0, 4 * number - 1).bit_length()  # as in the kernel
    keys, slots = np.full(size, -1), np.empty(size, np.int64)
    groups = merge(number, found, state.copy(), weight, group, keys, slots, np.empty_like(state))
    assert found[:groups].tolist() == list(dict.fromkeys(state.tolist()))
    assert weight[:groups].sum() == number
    assert (found[group] == state).all() and (keys == -1).all()


@pytest.mark.parametrize("beam", [2, 4, 81])
@pytest.mark.parametrize("complement", [False, True])
def test_states_may_be_rows_or_lists(
    complement: bool, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether sparse states become dense makes no difference; neither does their length."""
    visible = torch.tensor(some_rows(30, seed=1)).masked_fill(torch.rand(30, LENGTH) < 0.6, K)
    ends = torch.zeros(30, dtype=torch.int64), torch.full((30,), LENGTH)
    found = {}
    for words, numbers in itertools.product((K, K**2, K**3, K**4), (0, 1 << 24)):
        monkeypatch.setattr(chain, "_MOST_DENSE", words)
        monkeypatch.setattr(chain, "_MOST_NUMBERS", numbers)
        arrays = tables(count(some_rows(400), complement=complement))[0].chain
        assert (len(arrays.parent) == 0) == (numbers > 0 or words == K**4)
        assert len(arrays.dense) == len(arrays.following)
        found[words, numbers] = chain_posterior(arrays, visible, *ends, beam, beam)
    for words in (K, K**2, K**3, K**4):
        assert torch.equal(found[words, 0], found[words, 1 << 24])
        if beam == 81:
            torch.testing.assert_close(found[words, 0], found[K**4, 0])


def test_without_context_every_token_has_its_frequency() -> None:
    rows = some_rows(40)
    table, _ = tables(count(rows, 0))
    ends = torch.tensor([0]), torch.tensor([3])
    found = chain_posterior(table.chain, torch.full((1, 3), K), *ends, 9, 9)
    wanted = expected(words(rows), numbers(table), ())
    np.testing.assert_allclose(found[0], np.tile(wanted, (3, 1)), rtol=1e-5)


@pytest.mark.parametrize(("symbols", "few"), [(4, 256), (110, 256), (256, 128), (512, 64)])
def test_more_symbols_have_fewer_states(symbols: int, few: int) -> None:
    assert NGramExperts(symbols, ExpertsConfig(1))._beams == (few, 256)


def test_few_states_lose_little_of_what_many_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 8, 16 and 32 of 256 states. If all states are forgotten where there are too many, and
    not the least likely ones only, the losses are .56, .40 and .40 nats.
    """
    monkeypatch.setattr(chain, "_MOST_DENSE", 4**5)
    rng = np.random.default_rng(0)
    rows = rows_of_a_chain(rng, 4, 0.15, (600, 64))
    experts = NGramExperts(4, ExpertsConfig(4))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < 4))
    arrays = tables(experts)[0].chain
    visible = torch.tensor(np.where(rng.random((80, 64)) < 0.6, 4, rows[:80]))
    ends = torch.zeros(80, dtype=torch.int64), torch.full((80,), 64)
    exact = chain_posterior(arrays, visible, *ends, 256, 256)[visible == 4]

    def loss(log_probs: Tensor) -> float:
        return float((exact * (exact.log() - log_probs)).sum(dim=1).mean())

    few = [
        loss(chain_posterior(arrays, visible, *ends, n, n)[visible == 4].log()) for n in (8, 16, 32)
    ]
    nothing = loss(torch.from_numpy(arrays.dense[0]).log())
    assert nothing > 0.6
    assert all(one < most for one, most in zip(few, (0.18, 0.09, 0.045), strict=True)), few


def test_with_many_symbols_both_runs_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "_MOST_SYMBOLS", K - 1)
    rows = some_rows(40)
    for complement in (False, True):
        experts = count(rows, complement=complement)
        forward, backward = tables(experts)
        visible = torch.tensor(some_rows(6, seed=1))
        where = visible == K
        found = experts.terms(visible, where)
        ahead = words(rows, both_strands=complement)
        back = words(rows[:, ::-1], both_strands=complement)
        base = np.log(expected(ahead, numbers(forward), ()))
        for (b, i), one, seen, measures in zip(
            where.nonzero().tolist(),
            found.chain,
            found.seen.tolist(),
            found.uncertainty,
            strict=True,
        ):
            x = visible[b].tolist()
            left, right = x[max(0, i - ORDER) : i], x[i + 1 : i + 1 + ORDER][::-1]
            left = tuple(left[-next((j for j, t in enumerate(left[::-1]) if t == K), len(left)) :])
            ends = right[::-1].index(K) if K in right else len(right)
            right = tuple(right[len(right) - ends :])
            left = left if x[i - 1] < K and i > 0 else ()
            after_left = expected(ahead, numbers(forward), left)
            after_right = expected(back, numbers(backward), right)
            wanted = np.log(after_left) + np.log(after_right) - 2 * base
            np.testing.assert_allclose(one.numpy(), wanted, atol=1e-4)
            assert seen == len(left) + len(right)
            p = np.exp(base + wanted)
            p /= p.sum()
            entropy, distance = measures.tolist()
            assert entropy == pytest.approx(-(p * np.log(p)).sum() / np.log(len(p)), abs=1e-4)
            assert distance == pytest.approx(np.abs(after_left - after_right).sum() / 2, abs=1e-4)


def test_probabilities_that_round_to_zero_leave_the_mixture_finite() -> None:
    """After 16 tokens of a repeat another token is too unlikely for float32."""
    rows = np.tile(np.array([0, 1]), (400, 40))
    experts = NGramExperts(K, ExpertsConfig(16))
    experts.count(len(rows), lambda part: (rows[part], rows[part] < K))
    visible = torch.tensor(rows[:1])
    visible[0, 40] = K
    outputs = torch.randn(1, K)
    assert torch.equal(experts(outputs, visible, visible == K), outputs)
    experts.gates[:] = 1
    assert bool(experts(outputs, visible, visible == K).isfinite().all())


@pytest.mark.parametrize("complement", [False, True])
def test_before_it_is_fitted_the_mixture_is_the_network(complement: bool) -> None:
    rows, pair = some_rows(40), COMPLEMENT if complement else None
    experts = NGramExperts(K, ExpertsConfig(ORDER), pair)
    visible = torch.tensor(some_rows(6, seed=1))
    outputs = torch.randn(*visible.shape, K)
    assert not experts.counted
    assert experts(outputs, visible, None) is outputs
    experts.count(len(rows), lambda part: (rows[part], rows[part] < K))
    assert experts.counted
    assert torch.equal(experts(outputs, visible, None), outputs)


def test_rows_in_any_memory_layout_are_mixed() -> None:
    experts = count(some_rows(40))
    visible = torch.tensor(some_rows(6, seed=1))
    outputs = torch.randn(LENGTH, 6, K).transpose(0, 1)
    wanted = experts(outputs.contiguous(), visible, None)
    assert torch.equal(experts(outputs, visible, None), wanted)


def test_the_mixture_is_not_rounded_in_mixed_precision() -> None:
    experts = count(some_rows(40))
    visible = torch.tensor(some_rows(6, seed=1))
    outputs = torch.randn(6, LENGTH, K)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = experts(outputs, visible, None)
    torch.testing.assert_close(mixed, experts(outputs, visible, None))


def fit_case(context: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Tokens, where they are masked, outputs of a network, weights, and rows."""
    torch.manual_seed(0)
    x0 = torch.tensor(some_rows(60, seed=1))
    where = x0 < K
    if context != "prefix":
        where &= torch.rand(x0.shape) < 0.5
    outputs = torch.randn(int(where.sum()), K) + 2 * torch.eye(K)[x0[where]]
    return x0, where, outputs, torch.rand(int(where.sum())) + 0.5, where.nonzero()[:, 0]


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("context", ["row", "prefix"])
def test_the_fit_is_the_optimum_that_another_optimiser_finds(
    context: mixture.Context, complement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same loss by hand, in float64; the prior keeps gates of absent runs at 0."""
    monkeypatch.setattr(mixture, "_CHUNK", 500)
    monkeypatch.setattr(mixture, "_KNOTS", 3)
    experts = count(some_rows(40), complement=complement and context == "row")
    x0, where, outputs, weights, rows = fit_case(context)
    visible = x0 if context == "prefix" else x0.masked_fill(where, K)
    terms = experts.terms(visible, where, context=context)
    targets, tokens = x0[where], 300
    before, after = experts.fit(outputs, terms, targets, weights, rows, tokens)

    runs = (1, 3, 3, 1, 2 * ORDER + 1, 3, 3)
    places = np.cumsum((0, *runs))
    start = np.zeros(sum(runs))
    start[0] = 1
    f, u, p = (x.double().numpy() for x in (outputs, terms.base, terms.chain))
    seen, measures = terms.seen.numpy(), terms.uncertainty.double().numpy()
    heavy = weights.double().numpy()
    distinct, rows = rows.unique(return_inverse=True)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0))
    fold = (order % 4)[rows].numpy()
    every = np.ones_like(fold, dtype=bool)

    def nats(values: np.ndarray, chosen: np.ndarray) -> float:
        number, by_entropy, by_distance, unigram, *gates = np.split(values, places[1:-1])
        scale, gate = number[0], gates[0][seen]
        for measure, of_scale, of_gate in zip(
            measures.T, (by_entropy, by_distance), gates[1:], strict=True
        ):
            scale = scale + np.interp(measure, (0, 0.5, 1), of_scale)
            gate = gate + np.interp(measure, (0, 0.5, 1), of_gate)
        logits = scale[:, None] * f + unigram[0] * u + gate[:, None] * p
        lost = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(f)), targets.numpy()]
        return float((chosen * heavy * lost).sum() / heavy.sum())

    def optimum(chosen: np.ndarray, weight: float = 1.0) -> np.ndarray:
        def loss(values: np.ndarray) -> float:
            away = values - start
            prior = float((away[places[:-1]] ** 2).sum())
            prior += sum(
                float((np.diff(run) ** 2).sum()) / 0.03**2 for run in np.split(away, places[1:-1])
            )
            shown = float((heavy * chosen).sum() / heavy.sum())
            return nats(values, chosen) / shown + weight * prior / (2 * tokens * chosen.mean())

        return minimize(loss, start, method="BFGS", jac="3-point", options={"gtol": 1e-9}).x

    best = optimum(every)
    np.testing.assert_allclose(experts.scale[0].numpy(), best[:7], atol=1e-4)
    np.testing.assert_allclose(experts.gates[0].numpy(), best[7:], atol=1e-4)
    assert before == pytest.approx(nats(start, every), abs=1e-5)
    unseen = sum(nats(optimum(fold != n), fold == n) for n in range(4))
    assert after == pytest.approx(unseen, abs=1e-5)
    assert nats(best, every) < after < before - 0.01
    flat = optimum(every, 0.0)  # a twin without a prior
    assert np.abs(flat - best).max() > 0.01


def test_the_fit_of_a_network_that_is_sure_and_wrong_is_an_optimum() -> None:
    """Where the probabilities are 0 and 1, whole steps of Newton's method go much too far."""
    experts = count(some_rows(40))
    x0, where, _, weights, _ = fit_case("row")
    targets = x0[where]
    outputs = 40 * torch.eye(K)[torch.randint(K, targets.shape)]
    terms = experts.terms(x0.masked_fill(where, K), where)
    fold = torch.arange(len(targets)) % mixture.FOLDS
    share = weights.double() / weights.double().sum()
    problem = mixture._Problem(outputs, terms, targets, share, fold, 1e6, experts._runs)
    start = problem.at(problem.start)
    values = problem.minimum(start, range(mixture.FOLDS)).values.requires_grad_()
    hats = mixture._hats(terms.uncertainty.double())
    scale, unigram, gates = values[0] + hats @ values[1:19], values[19], values[20:]
    gate = gates[terms.seen] + hats @ gates[2 * ORDER + 1 :]
    found = scale[:, None] * outputs + unigram * terms.base + gate[:, None] * terms.chain
    found = found.log_softmax(dim=-1)
    loss = -(share * found.gather(1, targets[:, None])[:, 0]).sum()
    loss = loss + (problem.roots @ (values - problem.start)).square().sum() / 2e6
    (slope,) = torch.autograd.grad(loss, values)
    assert float(slope.abs().max()) < 1e-6
    assert float(loss.detach()) < float(start.nats.sum()) - 1


def fit_noise(rows: int, seed: int) -> tuple[float, float, NGramExperts]:
    """Fit to a few rows, where the network is right."""
    torch.manual_seed(seed)
    experts = count(some_rows(40))
    x0 = torch.tensor(some_rows(rows, seed=seed))
    where = x0 < K
    outputs = torch.log_softmax(torch.randn(int(where.sum()), K), dim=-1)
    targets = torch.multinomial(outputs.exp(), 1)[:, 0]
    terms = experts.terms(x0.masked_fill(where, K), where)
    ones, numbers = torch.ones(len(targets)), where.nonzero()[:, 0]
    return *experts.fit(outputs, terms, targets, ones, numbers, len(targets)), experts


def test_gates_that_do_not_help_on_other_rows_stay_closed() -> None:
    found = [fit_noise(8, seed) for seed in range(20)]
    refused = [experts for before, after, experts in found if before == after]
    assert len(refused) >= 10
    assert all(after <= before for before, after, _ in found)
    *_, too_few = fit_noise(3, 0)
    empty = count(some_rows(40))
    nothing = torch.full((5, LENGTH), K)
    terms, none = empty.terms(nothing, nothing < K), torch.zeros(0, dtype=torch.int64)
    assert empty.fit(torch.zeros(0, K), terms, none, torch.zeros(0), none, 0) == (0.0, 0.0)
    for experts in (*refused, too_few, empty):
        assert experts.scale[0].tolist() == [1.0, *[0.0] * 18]
        assert float(experts.gates.abs().max()) == 0


def test_every_block_size_has_gates_of_its_own() -> None:
    experts = count(some_rows(40), sizes=(1, 3))
    x0, where, outputs, weights, rows = fit_case("row")
    visible = x0.masked_fill(where, K)
    kept = experts.gates[0].clone(), experts.scale[0].clone()
    sight = {"context": "block", "clean": x0, "block_size": 3}
    terms = experts.terms(visible, where, **sight)
    experts.fit(outputs, terms, x0[where], weights, rows, 300, block_size=3)
    for old, new in zip(kept, (experts.gates, experts.scale), strict=True):
        assert torch.equal(old, new[0])
        assert not torch.allclose(new[1], new[0])
    alone = count(some_rows(40))
    for own, gates in zip(alone.buffers(), experts.buffers(), strict=True):
        own[0] = gates[1]
    assert torch.equal(
        experts(outputs, visible, where, **sight), alone(outputs, visible, where, **sight)
    )


def test_blocks_see_clean_blocks_before_them_and_masks_of_their_own() -> None:
    rows = some_rows(40)
    experts, size = count(rows), 4
    clean, visible = torch.tensor(some_rows(6, seed=1)), torch.tensor(some_rows(6, seed=2))
    where = visible == K
    outputs = torch.randn(int(where.sum()), K)
    arguments = {"context": "block", "clean": clean, "block_size": size}
    with torch.no_grad():
        found = experts(outputs, visible, where, **arguments).log_softmax(dim=-1)
    for (b, i), row, own in zip(where.nonzero().tolist(), found, outputs, strict=True):
        begin = i // size * size
        seen = [*clean[b, :begin].tolist(), *visible[b, begin : begin + size].tolist()]
        near = seen[max(0, begin - ORDER) :]
        wanted = by_hand(experts, rows, near, i - begin + min(begin, ORDER), own.numpy())
        np.testing.assert_allclose(row.numpy(), wanted, atol=1e-5)


def test_autoregressive_models_see_what_is_before() -> None:
    rows = some_rows(40)
    experts = count(rows)
    tokens = torch.tensor(some_rows(6, seed=1))
    with torch.no_grad():
        outputs = torch.randn(*tokens.shape, K)
        found = experts(outputs, tokens, None, context="prefix").log_softmax(dim=-1)
    forward, _ = tables(experts)
    ahead = words(rows)
    base = np.log(expected(ahead, numbers(forward), ()))
    for b, i in itertools.product(range(6), range(LENGTH)):
        run = tuple(tokens[b, :i].tolist())[-ORDER:] if i else ()
        run = run[len(run) - next((j for j, t in enumerate(run[::-1]) if t == K), len(run)) :]
        after = expected(ahead, numbers(forward), run)
        scale, unigram, gate = coefficients(experts, after, after, len(run))
        wanted = scale * outputs[b, i].numpy() + unigram * base + gate * (np.log(after) - base)
        wanted -= np.logaddexp.reduce(wanted)
        np.testing.assert_allclose(found[b, i].numpy(), wanted, atol=1e-5)


def small(name: str) -> Denoiser:
    """A model with experts, whose network counts."""
    torch.manual_seed(0)
    sizes = {"num_embeddings": K + 1, "num_logits": K}
    experts = count(some_rows(40), complement=name == "caduceus")
    process, net = Absorbing(K), Transformer(8, 1, 2, cond_dim=4, **sizes)
    if name == "caduceus":
        net = Caduceus(8, 1, variant="ps", d_state=4, complement=(*COMPLEMENT, K), **sizes)
    if name == "blocks":
        process = Blockwise(process, 3)
    if name == "ar":
        process, net = LeftToRight(K), AutoregressiveTransformer(8, 1, 2, **sizes)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return Denoiser(net, process, experts=experts).eval()


def test_a_denoiser_mixes_and_keeps_the_symmetry_of_strands() -> None:
    denoiser = small("caduceus")
    x = torch.tensor(some_rows(5, seed=1))
    other = torch.tensor([*COMPLEMENT, K])[x.flip(1)]
    t = torch.full((5,), 0.5)
    with torch.no_grad():
        one, two = (denoiser.log_probs(Inputs(z, t)) for z in (x, other))
        torch.testing.assert_close(one, two.flip(1)[..., list(COMPLEMENT)])
        plain = Denoiser(denoiser.backbone, denoiser.process).eval().log_probs(Inputs(x, t))
    masked = x == K
    assert not torch.allclose(one[masked], plain[masked], atol=1e-3)
    torch.testing.assert_close(one[masked].exp().sum(dim=-1), torch.ones(int(masked.sum())))


def test_a_cache_gives_the_logits_of_whole_rows() -> None:
    denoiser = small("blocks")
    x0, x_t = torch.tensor(some_rows(4, seed=1)), torch.tensor(some_rows(4, seed=2))
    where = x_t == K
    with torch.no_grad():
        whole = denoiser._outputs(Inputs(x_t), None, x0).log_softmax(dim=-1)
        prefix = denoiser.start(4)
        for first in range(0, LENGTH, 3):
            part, chosen = x_t[:, first : first + 3], where[:, first : first + 3]
            if bool(chosen.any()):
                found = prefix.log_probs(part, chosen)
                torch.testing.assert_close(found, whole[:, first : first + 3][chosen])
            prefix.append(x0[:, first : first + 3])
            order = torch.tensor([2, 0, 3, 1])  # other rows than the first ones, and all of them
            prefix = prefix.take(order)
            x0, x_t, where, whole = x0[order], x_t[order], where[order], whole[order]


def test_an_autoregressive_model_stays_one() -> None:
    """The chain rule: the probabilities of all rows add up to 1."""
    denoiser = small("ar")
    rows = torch.tensor(list(itertools.product(range(K), repeat=4)))
    where = torch.ones_like(rows, dtype=torch.bool)
    with torch.no_grad():
        nats = denoiser.nats(Inputs(rows), rows, where).sum(dim=1)
    assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_processes_without_clean_tokens_take_none() -> None:
    net = Transformer(
        8, 1, 2, cond_dim=4, num_embeddings=K + 1, num_logits=K, time_conditioned=True
    )
    with pytest.raises(ValueError, match=r"Denoiser\.experts must be None for the process uniform"):
        Denoiser(net, Uniform(K, LogLinear()), experts=count(some_rows(40)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": 25}, "ExpertsConfig.order must be in 0..24, got 25; set experts.order"),
        ({"order": -1}, "ExpertsConfig.order must be in 0..24, got -1; set experts.order"),
    ],
)
def test_wrong_numbers(change: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExpertsConfig(**change)


def test_orders_have_a_limit() -> None:
    """A word of four of 50,000 symbols is a number of 63 bits, and one of five is not."""
    rows = np.random.default_rng(0).integers(0, 50_000, (8, LENGTH))
    experts = NGramExperts(50_000, ExpertsConfig(4))
    experts.count(len(rows), lambda part: (rows[part], rows[part] >= 0))
    assert experts.table_order == 3
    with pytest.raises(ValueError, match=r"experts\.order must be in 0\.\.3 for 50000 symbols"):
        NGramTable.count([lambda: iter([(rows, rows >= 0)])] * 2, 50_000, 4)


def test_of_many_rows_evenly_spaced_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "_BLOCK_ROWS", 5)
    monkeypatch.setattr(mixture, "_MOST_TOKENS", 40 * LENGTH)
    rows = some_rows(80)
    kept = np.concatenate([rows[first : first + 5] for first in range(0, 80, 10)])
    assert torch.equal(count(rows)._state, count(kept)._state)


def test_a_single_part_cannot_be_left_out() -> None:
    rows = np.full((8, LENGTH), K)
    rows[0] = 0
    with pytest.raises(ValueError, match="experts must count at least two parts with a known"):
        count(rows)
