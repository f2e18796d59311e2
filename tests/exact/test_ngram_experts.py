"""N-gram tables and their mixture against counting by hand."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from seqdiff.backbones import AutoregressiveTransformer, Caduceus, Transformer
from seqdiff.denoiser import Denoiser
from seqdiff.experts import ExpertsConfig, NGramExperts, NGramTable, mixture, ngrams
from seqdiff.process import Absorbing, Blockwise, LeftToRight, Uniform
from seqdiff.schedules import LogLinear
from seqdiff.types import Inputs

K, ORDER, LENGTH = 3, 3, 9
COMPLEMENT = (2, 1, 0)


@pytest.fixture(params=["dense", "sparse"], autouse=True)
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all words, or only those that occur."""
    if request.param == "sparse":
        monkeypatch.setattr(ngrams, "_MOST_DENSE", 1)
        monkeypatch.setattr(ngrams, "_MERGED_TOKENS", 40)


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


def count(rows: np.ndarray, folds: int = 4, *, complement: bool = False) -> NGramExperts:
    experts = NGramExperts(K, ExpertsConfig(ORDER, folds), COMPLEMENT if complement else None)
    experts.count(len(rows), lambda part: (rows[part], rows[part] < K))
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


def ask(table: NGramTable, context: tuple[int, ...], part: int | None = None) -> np.ndarray:
    digits = torch.zeros(1, ORDER, dtype=torch.int64)
    digits[0, : len(context)] = torch.tensor(context[::-1])
    which = None if part is None else torch.tensor([part])
    return table.probs(digits, torch.tensor([len(context)]), which)[0].numpy()


@pytest.mark.parametrize("part", [None, 0, 3])
def test_a_table_is_counting_by_hand(part: int | None) -> None:
    """Of the other parts, if one is left out; the reversed rows are the second table."""
    rows = some_rows(40)
    forward, backward = tables(count(rows))
    kept = rows if part is None else np.concatenate((rows[: 10 * part], rows[10 * part + 10 :]))
    for table, one in ((forward, kept), (backward, kept[:, ::-1])):
        table.discounts = (0.25, 0.0, 0.75, 0.9)
        found = words(one)
        for context in contexts():
            wanted = expected(found, numbers(table), context)
            np.testing.assert_allclose(ask(table, context, part), wanted, rtol=1e-5)
    found = words(rows[:30])  # a broken twin, which leaves another part out
    context = (0, 1)
    wrong = expected(found, numbers(forward), context)
    assert not np.allclose(ask(forward, context, 0), wrong, rtol=1e-5)


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
    rows, pair = some_rows(400), COMPLEMENT if complement else None
    smaller = NGramExperts(K, ExpertsConfig(ORDER - 1, 4), pair)
    smaller.count(len(rows), lambda part: (rows[part], rows[part] < K))
    monkeypatch.setattr(mixture, "_MOST_BYTES", len(smaller.get_extra_state()))
    experts = count(rows, complement=complement)
    assert (experts.order, experts.table_order) == (ORDER, ORDER - 1)
    assert torch.equal(experts.get_extra_state(), smaller.get_extra_state())
    for one, two in zip(tables(experts), tables(smaller), strict=True):
        for context, part in itertools.product(contexts(), (None, 2)):
            assert np.array_equal(ask(one, context, part), ask(two, context[-ORDER + 1 :], part))
    other = NGramExperts(K, ExpertsConfig(ORDER, 4), pair)
    other.load_state_dict(experts.state_dict())
    assert other.table_order == ORDER - 1
    tokens = torch.tensor(some_rows(6, seed=1))
    outputs = torch.zeros(*tokens.shape, K)
    found = [model(outputs, tokens, None) for model in (experts, other, smaller)]
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], found[2])  # gates of 1 for every length


def test_counted_tables_keep_their_parts_and_take_no_others() -> None:
    """A resumed run counts, and then reads the same tables, perhaps compressed in another way."""
    rows, others = some_rows(40), some_rows(40, seed=5)
    for complement in (False, True):
        experts = count(rows, complement=complement)
        content = [table.encode() for table in dict.fromkeys(tables(experts))]
        spaced = [part + bytes(3) for part in content]  # after the end of the zip file
        sizes = np.array([len(part) for part in spaced], dtype=np.int64).tobytes()
        state = bytes([len(content)]) + sizes + b"".join(spaced)
        experts.set_extra_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        assert all(table.num_parts == 4 for table in tables(experts))
        with pytest.raises(ValueError, match="experts must count the training split that the chec"):
            experts.set_extra_state(count(others, complement=complement).get_extra_state())


@pytest.mark.parametrize("complement", [False, True])
def test_tables_follow_the_module_to_another_device(complement: bool) -> None:
    experts = count(some_rows(20), complement=complement).to("meta")
    assert all(table.device == torch.device("meta") for table in tables(experts))
    assert (tables(experts)[0] is tables(experts)[1]) == complement


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
    with pytest.raises(ValueError, match="damaged"):
        other.set_extra_state(state[:-1])


def by_hand(
    experts: NGramExperts, rows: np.ndarray, x: list[int], i: int, first: int, last: int
) -> np.ndarray:
    """Log-probabilities at a position that sees the visible tokens of [first, last)."""
    forward, backward = tables(experts)
    strands = experts.complement is not None
    ahead, back = words(rows, both_strands=strands), words(rows[:, ::-1], both_strands=strands)
    left, right = [], []
    while len(left) < ORDER and i - len(left) > first and x[i - 1 - len(left)] < K:
        left.insert(0, x[i - 1 - len(left)])
    while len(right) < ORDER and i + 1 + len(right) < last and x[i + 1 + len(right)] < K:
        right.insert(0, x[i + 1 + len(right)])
    base = np.log(expected(ahead, numbers(forward), ()))
    one = np.log(expected(ahead, numbers(forward), tuple(left)))
    two = np.log(expected(back, numbers(backward), tuple(right)))
    gates = experts.left.detach().numpy(), experts.right.detach().numpy() if not strands else None
    after = gates[1] if gates[1] is not None else gates[0]
    logits = gates[0][0] * base
    logits += gates[0][len(left)] * (one - base) + after[len(right)] * (two - base)
    return logits - np.logaddexp.reduce(logits)


@pytest.mark.parametrize("complement", [False, True])
def test_the_mixture_is_the_product_of_both_directions(complement: bool) -> None:
    rows = some_rows(40)
    experts = count(rows, complement=complement)
    with torch.no_grad():
        for gates in experts.parameters():
            gates.uniform_(0.5, 1.5)
    visible = torch.tensor(some_rows(6, seed=1))
    where = visible == K
    outputs = torch.randn(int(where.sum()), K)
    with torch.no_grad():
        found = (experts(outputs, visible, where) - outputs).log_softmax(dim=-1)
    for (b, i), row in zip(where.nonzero().tolist(), found, strict=True):
        wanted = by_hand(experts, rows, visible[b].tolist(), i, 0, LENGTH)
        np.testing.assert_allclose(row.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("complement", [False, True])
def test_closed_gates_leave_the_network(complement: bool) -> None:
    experts = count(some_rows(40), complement=complement)
    experts.close()
    visible = torch.tensor(some_rows(6, seed=1))
    outputs = torch.randn(*visible.shape, K)
    with torch.no_grad():
        assert torch.equal(experts(outputs, visible, None), outputs)


def test_blocks_see_clean_blocks_before_them_and_masks_of_their_own() -> None:
    rows = some_rows(40)
    experts, size = count(rows), 4
    clean, visible = torch.tensor(some_rows(6, seed=1)), torch.tensor(some_rows(6, seed=2))
    where = visible == K
    zero = torch.zeros(int(where.sum()), K)
    arguments = {"context": "block", "clean": clean, "block_size": size}
    with torch.no_grad():
        found = experts(zero, visible, where, **arguments).log_softmax(dim=-1)
    for (b, i), row in zip(where.nonzero().tolist(), found, strict=True):
        begin = i // size * size
        seen = [*clean[b, :begin].tolist(), *visible[b, begin : begin + size].tolist()]
        wanted = by_hand(experts, rows, seen, i, 0, len(seen))
        np.testing.assert_allclose(row.numpy(), wanted, atol=1e-5)


def test_autoregressive_models_see_what_is_before() -> None:
    rows = some_rows(40)
    experts = count(rows)
    tokens = torch.tensor(some_rows(6, seed=1))
    with torch.no_grad():
        outputs = torch.zeros(*tokens.shape, K)
        found = experts(outputs, tokens, None, context="prefix").log_softmax(dim=-1)
    for b, i in itertools.product(range(6), range(LENGTH)):
        wanted = by_hand(experts, rows, tokens[b].tolist(), i, 0, i + 1)
        np.testing.assert_allclose(found[b, i].numpy(), wanted, atol=1e-5)


def test_training_rows_do_not_see_their_own_part() -> None:
    rows = some_rows(40)
    experts, others = count(rows), count(rows[10:], folds=3)
    visible = torch.tensor(some_rows(2, seed=1))
    for other, table in zip(tables(others), tables(experts), strict=True):
        other.discounts, other.concentrations = table.discounts, table.concentrations
    outputs = torch.zeros(2, LENGTH, K)
    with torch.no_grad():
        found = experts(outputs, visible, None, row=torch.tensor([0, 9]))
        wanted = others(outputs, visible, None)
        torch.testing.assert_close(found, wanted)
        assert not torch.allclose(experts(outputs, visible, None), wanted)
        assert not torch.allclose(
            experts(outputs, visible, None, row=torch.tensor([10, 39])), wanted
        )


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
            prefix = prefix.take(torch.arange(4))
            prefix.append(x0[:, first : first + 3])


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
        ({"order": -1}, "ExpertsConfig.order must be at least 0, got -1; set experts.order"),
        ({"folds": 1}, "ExpertsConfig.folds must be at least 2, got 1; set experts.folds"),
    ],
)
def test_wrong_numbers(change: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExpertsConfig(**change)


def test_orders_have_a_limit() -> None:
    """A word of four of 50,000 symbols is a number of 63 bits, and one of five is not."""
    rows = np.random.default_rng(0).integers(0, 50_000, (8, LENGTH))
    experts = NGramExperts(50_000, ExpertsConfig(4, 4))
    experts.count(len(rows), lambda part: (rows[part], rows[part] >= 0))
    assert experts.table_order == 3
    with pytest.raises(ValueError, match=r"experts\.order must be in 0\.\.3 for 50000 symbols"):
        NGramTable.count([[(rows, rows >= 0)]] * 2, 50_000, 4)


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
