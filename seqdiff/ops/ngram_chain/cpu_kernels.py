"""Numba kernel of the posterior of unknown tokens in an n-gram chain.

A *state* is what the chain remembers: the last tokens, at most as many as its order. The forward
pass keeps the possible states before every position, with their probabilities given the visible
tokens so far. Each state and each token that the position can hold leads to a state before the next
position, and equal ones are added up. The backward pass multiplies each of these steps by the
probability of the visible tokens after it.

At most ``beam`` states are kept before an unknown token, which multiplies them, and ``wide`` before
a visible one. The others forget all their tokens: they become the empty state, 0. These are the
states that are least likely given the visible tokens on both sides. An earlier pass from right to
left estimates how likely the tokens after a position are given the *tail* of a state, its last few
tokens. The probability of a state that becomes the empty state is multiplied by its own estimate
and divided by that of the empty state, so that its posterior probability stays about the same. If
there are many states, most of the steps after an unknown token are *light*: so unlikely that they
lead to the empty state at once. Only their sums are kept, for each state and for each token.

A state is a number. Every string of k tokens up to ``depth`` is the state ``off[k] + code``, where
``code`` has the tokens as digits in base K, the last one last. Longer states have occurred in
training, and come after these in the order of their length. The first states are *dense*: they are
rows of ``dense`` and ``following``. The others are *sparse*: lists have what differs from the state
without its oldest token. In chains with few symbols all states are dense, and otherwise those of at
most ``depth`` tokens.
"""

from __future__ import annotations

import numpy as np

from seqdiff.ops.cpu_simd.jit import inlined, inner
from seqdiff.ops.cpu_simd.vectors import next_task

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false

# Lower bounds of the probability of a step, and of the forward and backward probabilities of a
# state. Their product is not 0 in float64, even if visible tokens contradict what the chain has
# seen.
_LEAST_CHANCE, _LEAST_STATE = np.float32(1e-30), 1e-130
_LEAST_AHEAD = np.float32(1e-20)  # of an estimate, relative to the largest one
# A step is light if the estimate of its posterior probability, times the number of states to keep,
# is less than this.
_LIGHT = 1 / 16
# Of too many states, those are forgotten whose estimated posterior probability, times the number of
# states to keep, is less than a threshold. It starts with this and rises until few enough are left.
_RARE = 1 / 1600
_MOST_TAILS = 300  # few enough that their estimates take little time


@inlined
def _climb(state, parent, dense, path):
    """List a state and its shorter ones down to a dense one; return that one and their number."""
    number, many = 0, len(dense)
    while state >= many:
        path[number] = state - many
        number += 1
        state = parent[state - many]
    return state, number


@inlined
def _spread(state, dense, following, parent, keep, first, token, gain, leads, path, probs, reached):
    """Compute the probability of every token after a state, and the state that it leads to."""
    K = dense.shape[1]
    base, number = _climb(state, parent, dense, path)
    for x in range(K):
        probs[x] = dense[base, x]
        reached[x] = following[base, x]
    for n in range(number - 1, -1, -1):
        place = path[n]
        for x in range(K):
            probs[x] *= keep[place]
        for f in range(first[place], first[place + 1]):
            probs[token[f]] += gain[f]
            reached[token[f]] = leads[f]


@inlined
def _single(state, x, dense, following, parent, keep, first, token, gain, leads, path):
    """Compute the probability of one token after a state, and the state that it leads to."""
    base, number = _climb(state, parent, dense, path)
    prob, reached = dense[base, x], following[base, x]
    for n in range(number - 1, -1, -1):
        place = path[n]
        prob *= keep[place]
        low, high = first[place], first[place + 1]
        while low < high:
            middle = (low + high) // 2
            if token[middle] < x:
                low = middle + 1
            else:
                high = middle
        if low < first[place + 1] and token[low] == x:
            prob += gain[low]
            reached = leads[low]
    return prob, reached


@inner
def _look_ahead(tokens, begin, end, off, near, reach, ahead, scale):
    """Estimate the probability of the tokens from a position on after each tail.

    The tails are dense states, and ``near`` has the probabilities of tokens after them. Those
    before position i have the estimates ``ahead[i]``, which are divided by the largest one. With
    ``ahead[i + 1]`` as the estimates after it, the largest one is ``scale[i]``. After a visible
    token, only the empty tail and those that end with this token are set.
    """
    K, tails = near.shape[1], len(reach)
    ahead[end, :] = 1.0
    for i in range(end - 1, begin - 1, -1):
        x, largest = tokens[i], np.float32(0)
        shift, step = 0, 1
        if i > begin and tokens[i - 1] < K:
            shift, step = tokens[i - 1], K
        k, s = 0, 0
        while s < tails:
            then = reach[s]
            if x < K:
                own = near[s, x] * ahead[i + 1, then + x]
            else:  # four sums at a time
                a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                for y in range(0, K - 3, 4):
                    a += near[s, y] * ahead[i + 1, then + y]
                    b += near[s, y + 1] * ahead[i + 1, then + y + 1]
                    c += near[s, y + 2] * ahead[i + 1, then + y + 2]
                    d += near[s, y + 3] * ahead[i + 1, then + y + 3]
                for y in range(K // 4 * 4, K):
                    a += near[s, y] * ahead[i + 1, then + y]
                own = (a + b) + (c + d)
            ahead[i, s] = own
            largest = max(largest, own)
            s += step
            if s >= off[k + 1]:
                k += 1
                s = off[k] + shift
        scale[i] = largest
        k, s = 0, 0
        while s < tails:
            ahead[i, s] = max(ahead[i, s] / largest, _LEAST_AHEAD)
            s += step
            if s >= off[k + 1]:
                k += 1
                s = off[k] + shift


@inlined
def _weigh(probs, ahead, bound, mass, odds, light):
    """Multiply the probabilities of tokens by the estimates of the tokens after them.

    Add the products below ``bound``, times ``mass``, to ``light``, and return their sum.
    """
    K, lost = len(probs), 0.0
    for y in range(K):
        odds[y] = max(probs[y] * ahead[y], _LEAST_CHANCE)
    for y in range(K):
        light[y] += mass * (odds[y] if odds[y] < bound else np.float32(0))
    for y in range(K):
        lost += odds[y] if odds[y] < bound else np.float32(0)
    return lost


@inner
def _merge(count, state, tail, weight, group, keys, slots, used):
    """Add up the weights of equal states, and number the groups; return how many there are."""
    mask, groups = 0, 0
    while mask + 1 < 4 * count:
        mask = 2 * mask + 1
    for g in range(count):
        place = ((state[g] * 0x9E3779B1) >> 7) & mask
        while keys[place] >= 0 and keys[place] != state[g]:
            place = (place + 1) & mask
        if keys[place] < 0:
            keys[place] = state[g]
            slots[place] = groups
            used[groups] = place
            own, end, mass = state[g], tail[g], weight[g]
            state[groups], tail[groups], weight[groups] = own, end, mass
            group[g] = groups
            groups += 1
        else:
            group[g] = slots[place]
            weight[slots[place]] += weight[g]
    for g in range(groups):
        keys[used[g]] = -1
    return groups


@inner
def _forget(groups, state, tail, weight, forgotten, beam, ahead, renamed, factor):
    """Keep at most ``beam`` states, and number them anew; the others become the empty state.

    The empty state is the last one, with their weight and that of light steps, ``forgotten``,
    unless both are 0. Return the number of states.
    """
    bound, left = 0.0, groups
    if groups > beam:
        whole = 0.0
        for g in range(groups):
            factor[g] = weight[g] * ahead[tail[g]]
            whole += factor[g]
        bound = whole / beam * _RARE / 1.25
        while left > beam:
            bound *= 1.25
            left = 0
            for g in range(groups):
                left += factor[g] >= bound
    left = 0
    for g in range(groups):
        if groups <= beam or factor[g] >= bound:
            state[left], tail[left], weight[left] = state[g], tail[g], weight[g]
            renamed[g], factor[g] = left, 1.0
            left += 1
        else:
            factor[g] = ahead[tail[g]] / ahead[0]
            forgotten += weight[g] * factor[g]
            renamed[g] = -1
    if forgotten > 0:
        state[left], tail[left], weight[left] = 0, 0, forgotten
        left += 1
    return left


@inner
def _longer(values):
    """Copy values to the beginning of an array that is twice as long."""
    copied = np.empty(2 * len(values), values.dtype)
    copied[: len(values)] = values
    return copied


@inner
def _go_back(
    tokens, begin, end, number, alpha, first_step, symbol, chance, link, loss, light, after,
    before, out,
):  # fmt: skip
    """Run the backward pass of a row, and fill ``out`` at unknown positions.

    State j before position i has the steps from ``first_step[i, j]`` to ``first_step[i, j + 1]``,
    and its light steps have the probability ``loss[i, j]`` together. Light steps with token y have
    the joint probability ``light[i, y]`` with the visible tokens before position i.
    """
    K, total = out.shape[1], np.empty(out.shape[1])
    after[:] = 1.0
    for i in range(end - 1, begin - 1, -1):
        empty = after[number[i + 1] - 1]
        for y in range(K):
            total[y] = light[i, y] * empty
        largest = 0.0
        for j in range(number[i]):
            mass = loss[i, j] * empty
            for c in range(first_step[i, j], first_step[i, j + 1]):
                joint = chance[c] * after[link[c]]
                mass += joint
                total[symbol[c]] += alpha[i, j] * joint
            before[j] = mass
            largest = max(largest, mass)
        for j in range(number[i]):
            after[j] = max(before[j] / largest, _LEAST_STATE)
        if tokens[i] == K:
            out[i] = total / total.sum()


def posterior(
    counter, tokens, start, stop, dense, following, off, parent, keep, first, token, gain, leads,
    out, order, depth, beam, wide,
):  # fmt: skip
    """Run tasks, which are rows, until none is left, and fill ``out``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        tokens: Ids ``(R, L)``, K where unknown.
        start: First position of each row ``(R,)``.
        stop: The position after its last one ``(R,)``.
        dense: Probability of every token after every dense state ``(S, K)``.
        following: The state after every dense state and token ``(S, K)``.
        off: The first state of 0, 1, ..., ``depth + 1`` tokens ``(depth + 2,)``.
        parent: The state without its oldest token, for each sparse state ``(C,)``.
        keep: What the probabilities after that state are multiplied by ``(C,)``.
        first: Where the tokens that followed each state begin and the last ones end ``(C + 1,)``.
        token: Those tokens, in order for each state ``(F,)``.
        gain: What is added to their probability ``(F,)``.
        leads: The state that they lead to ``(F,)``.
        out: Probability of every token at unknown positions ``(R, L, K)``, not set elsewhere.
        order: Longest state, in tokens.
        depth: Up to how many tokens every string is a state.
        beam: Most states before an unknown token, besides the empty one.
        wide: Most states before a visible token, likewise; at least ``beam``.
    """
    rows, length = tokens.shape
    K = dense.shape[1]
    states = wide + 1
    most = max(states, (beam + 1) * K)
    size = 1
    while size < 4 * most:
        size *= 2
    keys, slots = np.full(size, -1, np.int64), np.empty(size, np.int64)
    used, group, renamed = (
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    new, weight = np.empty(most, np.int64), np.empty(most)
    new_tail, factor = np.empty(most, np.int64), np.empty(most)
    path, probs, reached = (
        np.empty(order + 1, np.int64),
        np.empty(K, np.float32),
        np.empty(K, np.int32),
    )
    state, tail = np.empty(states, np.int64), np.empty(states, np.int64)
    alpha, number = np.empty((length + 1, states)), np.empty(length + 1, np.int64)
    first_step = np.empty((length, states + 1), np.int64)
    loss, light = np.empty((length, states), np.float32), np.empty((length, K))
    odds = np.empty(K, np.float32)
    after, before = np.empty(states), np.empty(states)
    limited = depth < order or off[depth + 1] - off[depth] > beam
    longest = 0  # tail, in tokens
    while longest < depth and off[longest + 2] <= _MOST_TAILS:
        longest += 1
    reach = np.empty(off[longest + 1], np.int64)  # the tail after a tail and token 0
    for k in range(longest + 1):
        for s in range(off[k], off[k + 1]):
            reach[s] = off[min(k + 1, longest)] + (s - off[k]) * K % K**longest
    symbol, link, chance = (
        np.empty(most, np.int16),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
    )
    step, near = min(longest, 1), dense[: len(reach)]
    ahead, scale = np.ones((length + 1, max(K, len(reach))), np.float32), np.ones(length)
    while True:
        row = next_task(counter)
        if row >= rows:
            return
        begin, end = start[row], stop[row]
        unknown = False
        for i in range(begin, end):
            unknown |= tokens[row, i] == K
        if not unknown:
            continue
        if limited and longest > 0:
            _look_ahead(tokens[row], begin, end, off, near, reach, ahead, scale)
        state[0], tail[0], alpha[begin, 0], number[begin] = 0, 0, 1.0, 1
        steps = 0
        for i in range(begin, end):
            x, count = tokens[row, i], number[i]
            origin, kept = steps, 0
            forgotten = 0.0
            light[i] = 0.0
            to_keep = wide if i + 1 == end or tokens[row, i + 1] < K else beam
            if steps + most > len(chance):
                symbol, link, chance = _longer(symbol), _longer(link), _longer(chance)
            if x < K:
                for j in range(count):
                    prob, to = _single(
                        state[j], x, dense, following, parent, keep, first, token, gain, leads, path
                    )
                    first_step[i, j], loss[i, j] = steps, 0.0
                    chance[steps], symbol[steps] = max(prob, _LEAST_CHANCE), 0
                    new[kept], weight[kept] = to, alpha[i, j] * chance[steps]
                    new_tail[kept] = reach[tail[j]] + x * step
                    kept += 1
                    steps += 1
            else:
                least = 0.0
                if limited and count * K > 4 * beam:
                    for j in range(count):
                        least += alpha[i, j] * ahead[i, tail[j]]
                    least *= scale[i] * _LIGHT / to_keep
                for j in range(count):
                    _spread(
                        state[j], dense, following, parent, keep, first, token, gain, leads, path,
                        probs, reached,
                    )  # fmt: skip
                    first_step[i, j] = steps
                    end_of, mass = reach[tail[j]], alpha[i, j]
                    bound = np.float32(least / mass)
                    coming = ahead[i + 1, end_of : end_of + K]
                    lost = _weigh(probs, coming, bound, mass, odds, light[i])
                    loss[i, j] = lost / ahead[i + 1, 0]
                    forgotten += mass * loss[i, j]
                    for y in range(K):
                        if odds[y] >= bound:
                            chance[steps], symbol[steps] = max(probs[y], _LEAST_CHANCE), y
                            new[kept], weight[kept] = reached[y], mass * chance[steps]
                            new_tail[kept] = end_of + y * step
                            kept += 1
                            steps += 1
                for y in range(K):
                    light[i, y] /= ahead[i + 1, 0]
            first_step[i, count] = steps
            groups = _merge(kept, new, new_tail, weight, group, keys, slots, used)
            left = _forget(
                groups, new, new_tail, weight, forgotten, to_keep, ahead[i + 1], renamed, factor
            )
            total = 0.0
            for g in range(left):
                total += weight[g]
            for g in range(left):
                state[g], tail[g] = new[g], new_tail[g]
                alpha[i + 1, g] = max(weight[g] / total, _LEAST_STATE)
            number[i + 1] = left
            for c in range(kept):
                g = group[c]
                chance[origin + c] = max(chance[origin + c] * factor[g], _LEAST_CHANCE)
                link[origin + c] = renamed[g] if renamed[g] >= 0 else left - 1
        _go_back(
            tokens[row], begin, end, number, alpha, first_step, symbol, chance, link, loss, light,
            after, before, out[row],
        )  # fmt: skip
