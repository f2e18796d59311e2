"""The numbers of a report computed from their formulas, letter by letter."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from scipy.optimize import minimize
from scipy.stats import mannwhitneyu
from sklearn.model_selection import StratifiedKFold

Rows = Sequence[str]
OTHER = str.maketrans("ACGT", "TGCA")


def opposite(text: str) -> str:
    return text.translate(OTHER)[::-1]


def strands(rows: Rows) -> Iterator[str]:
    for row in rows:
        yield row
        yield opposite(row)


def all_words(k: int) -> list[str]:
    return ["".join(word) for word in product("ACGT", repeat=k)]


def words(rows: Rows, k: int) -> Counter:
    """Count the words of k letters without N, on the given strands."""
    every = (row[i : i + k] for row in rows for i in range(len(row) - k + 1))
    return Counter(word for word in every if "N" not in word)


def divergence(ours: Counter, theirs: Counter) -> float:
    """H((P + Q) / 2) - (H(P) + H(Q)) / 2 in bits (Lin 1991, eq. 4.1)."""
    p, q = ({w: n / c.total() for w, n in c.items()} for c in (ours, theirs))

    def entropy(distribution: dict[str, float]) -> float:
        return -sum(share * np.log2(share) for share in distribution.values() if share > 0)

    middle = {w: (p.get(w, 0) + q.get(w, 0)) / 2 for w in p.keys() | q.keys()}
    return entropy(middle) - (entropy(p) + entropy(q)) / 2


def correlation(ours: Counter, theirs: Counter, k: int) -> float:
    """Covariance over the product of the standard deviations, over all 4^k words."""
    x, y = (np.array([c[w] / c.total() for w in all_words(k)]) for c in (ours, theirs))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def hits(scores: np.ndarray, rows: Rows) -> int:
    """Count the positions on either strand with at least 80% of the best score."""
    width, least = len(scores), 0.8 * scores.max(axis=1).sum() - 1e-9
    found = 0
    for row in strands(rows):
        for i in range(len(row) - width + 1):
            word = row[i : i + width]
            if "N" not in word:
                found += sum(scores[j]["ACGT".index(b)] for j, b in enumerate(word)) >= least
    return int(found)


def longest_match(row: str, text: str) -> int:
    """Length of the longest stretch without N that occurs on either strand of a text."""
    both = (text, opposite(text))
    best = 0
    for i in range(len(row)):
        while i + best < len(row):
            part = row[i : i + best + 1]
            if "N" in part or not any(part in strand for strand in both):
                break
            best += 1
    return best


def containment(rows: Rows, text: str, k: int) -> float:
    """Fraction of the words that occur on either strand of a text."""
    there = set(words(strands([text]), k))
    ours = words(rows, k)
    return sum(n for word, n in ours.items() if word in there) / ours.total()


def distinct(rows: Rows, k: int) -> float:
    """Fraction of distinct words; a word and its reverse complement count as one."""
    ours = words(rows, k)
    return len({min(word, opposite(word)) for word in ours}) / ours.total()


def area(real: Rows, others: Rows, seed: int, *, penalty: float = 100, shuffle: bool = True):
    """Mean area over five folds of a logistic regression on 4-mer frequencies, from the formula.

    It minimises the sum of log losses plus ``penalty`` |w|^2 / 2; the area is Mann and Whitney's.
    """
    table = []
    for row in [*real, *others]:
        found = words(strands([row]), 4)
        table.append([found[name] / found.total() for name in all_words(4)])
    x, y = np.array(table), np.repeat([-1.0, 1.0], [len(real), len(others)])
    folds = StratifiedKFold(5, shuffle=shuffle, random_state=seed if shuffle else None)
    areas = []
    for fitted, held in folds.split(x, y):
        mean, spread = x[fitted].mean(axis=0), x[fitted].std(axis=0)
        z = (x - mean) / np.where(spread == 0, 1, spread)

        def loss(w: np.ndarray, z: np.ndarray = z[fitted], y: np.ndarray = y[fitted]):
            margin = y * (z @ w[1:] + w[0])
            pull = -y / (1 + np.exp(margin))
            slope = np.concatenate([[pull.sum()], z.T @ pull + penalty * w[1:]])
            return np.logaddexp(0, -margin).sum() + penalty * (w[1:] ** 2).sum() / 2, slope

        best = minimize(loss, np.zeros(257), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
        score = z[held] @ best.x[1:]
        ours, theirs = score[y[held] > 0], score[y[held] < 0]
        areas.append(mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs)))
    return float(np.mean(areas))
