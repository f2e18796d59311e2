"""Terms of the negative evidence lower bound (NELBO), in nats, unreduced.

The first functions are formulas at single positions, of any leading shape. The others call a
denoiser on a batch and return terms ``[B, L]``, 0 at positions that do not count; objectives and
estimators draw the noise and call these. The bound of a row is the expectation of the sum of its
terms. Per token, it is divided by the number of counted tokens, not of masked ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from seqdiff.denoiser import Denoiser, GaussianDenoiser, Level, NoisyEmbeddings
from seqdiff.parameterization import Subs, before_the_end, scores_from_distribution
from seqdiff.process import Absorbing, DiscreteProcess, Gaussian, TokenScheduled, scales
from seqdiff.types import Batch

Weight = Float[Tensor, " B"] | Float[Tensor, "B L"]


def score_entropy(
    log_scores: Float[Tensor, "*n states"],
    x0: Int[Tensor, "*n"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n"]:
    """The density of the continuous-time NELBO at time t, for given scores s.

    It is the sum over y != z of Q_t(y -> z) [s_y - r_y - r_y (log s_y - log r_y)] with the true
    ratios r_y = q_t(y | x0) / q_t(z | x0). It is never negative, and 0 for s = r. Source: Lou et
    al. 2024, arXiv:2310.16834, equation 9; Campbell et al. 2022, arXiv:2205.14987.

    Args:
        log_scores: Log-ratios of all states to the present one.
        x0: Clean ids below K.
        z: Noisy ids.
        t: Times in (0, 1).
        process: The process that z was drawn from.

    Returns:
        Nats per unit time.
    """
    t = before_the_end(t)
    log_ratios = scores_from_distribution(process.one_hot(x0), z, t, process)
    ratios, scores = log_ratios.exp(), log_scores.double()
    others = z[..., None] != torch.arange(process.states, device=z.device)
    rates = process.rate_into(z, t).expand(scores.shape)
    counted, possible = others & (rates > 0), ratios > 0
    # Infinite values in the branch of torch.where that is not taken would make gradients NaN.
    difference = torch.where(counted & possible, scores - log_ratios, 0.0)
    # expm1(d) - d keeps its digits where s is close to r; r = 0 leaves the score itself.
    terms = torch.where(
        possible,
        ratios.where(counted, 0.0) * (difference.expm1() - difference),
        scores.where(counted, -torch.inf).exp(),
    )
    return torch.where(counted, rates * terms, 0.0).sum(dim=-1)


def ctmc_nelbo(
    log_loo: Float[Tensor, "*n k"],
    x0: Int[Tensor, "*n"],
    z: Int[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n"]:
    """``score_entropy`` of the scores that a leave-one-out distribution implies.

    With the absorbing process this is -alpha' / (1 - alpha) times the cross-entropy at masked
    positions; with the uniform one the loss of UDLM, with hybrid noise that of GIDD. Source: Sahoo
    et al. 2024, arXiv:2406.07524, equation 10; Schiff et al. 2024, arXiv:2412.10193, equation 18;
    von Ruette et al. 2025, arXiv:2503.04482, equation 11.

    Args:
        log_loo: Leave-one-out distribution of x0; see ``score_entropy`` for the others.
        x0: Clean ids below K.
        z: Noisy ids.
        t: Times in (0, 1).
        process: The process that z was drawn from.

    Returns:
        Nats per unit time.
    """
    t = before_the_end(t)
    return score_entropy(scores_from_distribution(log_loo, z, t, process), x0, z, t, process)


def unmasking_nelbo(
    log_rates: Float[Tensor, "*n K"],
    x0: Int[Tensor, "*n"],
    power: Float[Tensor, "*n"],
    t: Float[Tensor, "*n"],
) -> Float64[Tensor, "*n"]:
    """The density of the continuous-time NELBO at masks whose tokens have schedules of their own.

    With the schedule t^w, a mask is removed at the rate w / t, and in the model it turns into y at
    the rate v_y / t. The term is (sum_y v_y - w - w (log v_k - log w)) / t for the true symbol k,
    never negative. With v_y = w_y p(y) it is the bound of GenMD4 and equal to ``ctmc_nelbo``; with
    v_y = v p(y) it is w times the cross-entropy and the loss of the velocity v. Source: Shi et al.
    2024, arXiv:2406.04329, section 6; arXiv:2602.02112.

    Args:
        log_rates: log v_y of each symbol, see ``Denoiser.log_rates``.
        x0: Clean ids below K.
        power: w of each token.
        t: Times in (0, 1].

    Returns:
        Nats per unit time.
    """
    log_rates, power = log_rates.double(), power.double()
    at_x0 = log_rates.gather(-1, x0[..., None].long()).squeeze(-1)
    return (log_rates.exp().sum(dim=-1) - power - power * (at_x0 - power.log())) / t


def discrete_kl(
    log_loo: Float[Tensor, "*n k"],
    x0: Int[Tensor, "*n"],
    z: Int[Tensor, "*n"],
    s: Float[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: DiscreteProcess,
) -> Float64[Tensor, "*n"]:
    """One step's term of the T-step NELBO: KL(q(z_s | z_t, x0) || p(z_s | z_t)).

    Summed over the T steps from 1 to 0 it is the bound, up to its two end terms; with alpha(0) = 1
    the step that ends at s = 0 is the reconstruction term of D3PM. Source: Austin et al. 2021,
    arXiv:2107.03006, equation 3.

    Args:
        log_loo: Leave-one-out distribution of x0, over the K symbols or over all states.
        x0: Clean ids below K.
        z: Noisy ids at time t.
        s: The step's end, in [0, t).
        t: The step's start, in (0, 1].
        process: The process that z was drawn from.

    Returns:
        Nats, never negative.
    """
    true = process.log_posterior(process.one_hot(x0), z, s, t)
    model = process.log_posterior(log_loo, z, s, t)
    possible = true.isfinite()
    return torch.where(possible, true.exp() * (true - model).where(possible, 0.0), 0.0).sum(dim=-1)


def mask_column_kl(
    log_probs: Float[Tensor, "*n V"],
    x0: Int[Tensor, "*n"],
    s: Float[Tensor, "*n"],
    t: Float[Tensor, "*n"],
    process: Absorbing,
) -> Float64[Tensor, "*n"]:
    """``discrete_kl`` at masked positions of the absorbing process, in closed form.

    Exact at both ends, where the general form would subtract infinities. Source: the formula of
    Austin et al. 2021, arXiv:2107.03006, with q(z_s | z_t, x0 := p).

    Args:
        log_probs: Distribution of x0 over the K symbols and, last, the mask; or without the mask.
        x0: Clean ids below K.
        s: The step's end, in [0, t).
        t: The step's start, in (0, 1].
        process: The absorbing process.

    Returns:
        Nats, never negative.
    """
    at_x0 = log_probs.gather(-1, x0[..., None].long()).squeeze(-1).double()
    unmask = process.unmask_probability(s, t)
    if log_probs.shape[-1] == process.vocab_size:
        return -unmask * at_x0
    on_mask = log_probs[..., process.unknown_id].double().exp()
    excess_s, excess_t = (_mask_excess(process, time, on_mask) for time in (s, t))
    terms = unmask * (excess_t - at_x0)
    return terms + (1 - unmask) * (excess_t - excess_s)


def _mask_excess(process: Absorbing, time: Tensor, on_mask: Tensor) -> Tensor:
    """Log factor by which a mask is more likely if x0 may be the mask; finite at time 0."""
    alpha = process.alpha(time)
    odds = torch.where(alpha < 1, alpha / (1 - alpha), 0.0)
    return torch.log1p(odds * on_mask)


# Terms of a batch


def masked_terms(
    denoiser: Denoiser,
    batch: Batch,
    x_t: Int[Tensor, "B L"],
    t: Float[Tensor, " B"] | None,
    weight: Weight,
) -> Float[Tensor, "B L"]:
    """Terms of masked diffusion: the weighted cross-entropy of the masked tokens that count.

    With k of n positions masked at random, k uniform on 1..n, and weight n/k, the expected sum of a
    row is its NELBO (Ou et al. 2024, arXiv:2406.03736, theorem 2). Unknown tokens of the data do
    not count.

    Args:
        denoiser: A model of the absorbing process, or of its blocks.
        batch: Clean tokens.
        x_t: Corrupted ids.
        t: Times of the rows; ``None`` for a denoiser that does not depend on them.
        weight: One weight per row, or one per token.
    """
    where = (x_t == denoiser.process.unknown_id) & _counted(denoiser, batch)
    return weighted(denoiser, batch, x_t, t, where, weight)


def weighted(
    denoiser: Denoiser,
    batch: Batch,
    x_t: Int[Tensor, "B L"],
    t: Float[Tensor, " B"] | None,
    where: Bool[Tensor, "B L"],
    weight: Weight,
) -> Float[Tensor, "B L"]:
    """Weighted cross-entropy of some tokens; see ``masked_terms``."""
    inputs = batch.inputs(x_t, None if t is None else t.float())
    nats = denoiser.nats(inputs, batch.tokens, where)
    return torch.where(where, nats * weight.to(nats.dtype).view(len(nats), -1), 0.0)


def continuous_terms(
    denoiser: Denoiser,
    batch: Batch,
    z: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    weight: Float[Tensor, " B"],
) -> Float[Tensor, "B L"]:
    """Weighted density of the continuous-time bound at the rows' times.

    For masked diffusion it is the cross-entropy of the masked tokens. Every other model has a term
    at all positions that count, whether the noise changed them or not.

    Args:
        denoiser: A model of a discrete process.
        batch: Clean tokens.
        z: Noisy ids.
        t: Times in (0, 1).
        weight: One over the density of the times.
    """
    process = denoiser.process
    if isinstance(process, Absorbing) and isinstance(denoiser.parameterization, Subs):
        return masked_terms(denoiser, batch, z, t, process.schedule.nelbo_weight(t) * weight)
    where = _counted(denoiser, batch)
    if isinstance(process, TokenScheduled):
        return unmasking_terms(denoiser, batch, z, t, weight)
    discrete = require_discrete(denoiser)
    if discrete.visible_is_clean:
        where = where & (z == process.unknown_id)
    inputs = batch.inputs(z, t)
    x0, noisy, times = batch.tokens[where], z[where], t.double()[where.nonzero()[:, 0]]
    if denoiser.kind == "score":
        terms = score_entropy(denoiser(inputs, where), x0, noisy, times, discrete)
    else:
        terms = ctmc_nelbo(denoiser.log_loo(inputs, where), x0, noisy, times, discrete)
    return _spread(terms, where, weight)


def unmasking_terms(
    denoiser: Denoiser,
    batch: Batch,
    z: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    weight: Float[Tensor, " B"],
) -> Float[Tensor, "B L"]:
    """``continuous_terms`` of a model whose tokens have noise schedules of their own."""
    process = denoiser.process
    assert isinstance(process, TokenScheduled)
    where = _counted(denoiser, batch) & (z == process.mask_id)
    log_rates = denoiser.log_rates(batch.inputs(z, t), where)
    power, times = process.power_of(batch.tokens)[where], t.double()[where.nonzero()[:, 0]]
    return _spread(unmasking_nelbo(log_rates, batch.tokens[where], power, times), where, weight)


def step_terms(
    denoiser: Denoiser,
    batch: Batch,
    z: Int[Tensor, "B L"],
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    weight: Float[Tensor, " B"],
    auxiliary: float = 0.0,
) -> Float[Tensor, "B L"]:
    """Weighted terms of one step of the T-step bound.

    Args:
        denoiser: A model of a discrete process that predicts the clean token.
        batch: Clean tokens.
        z: Noisy ids at time t.
        s: Ends of the steps.
        t: Starts of the steps.
        weight: One weight per row; T for a step drawn uniformly.
        auxiliary: Coefficient of D3PM's additional cross-entropy of x0, without the weight; above 0
            the sum is no bound.

    Raises:
        ValueError: If the denoiser predicts scores.
    """
    process, kind = denoiser.process, denoiser.kind
    if kind == "score":
        raise ValueError(
            "step_terms.denoiser must predict the clean token, got scores; train it by "
            "ContinuousNELBO"
        )
    plain = isinstance(process, Absorbing) and isinstance(denoiser.parameterization, Subs)
    if isinstance(process, Absorbing) and plain and auxiliary == 0:
        return masked_terms(denoiser, batch, z, t, process.unmask_probability(s, t) * weight)
    where = _counted(denoiser, batch)
    discrete = require_discrete(denoiser)
    if discrete.visible_is_clean:
        where = where & (z == process.unknown_id)
    row = where.nonzero()[:, 0]
    x0, noisy, starts, ends = batch.tokens[where], z[where], t.double()[row], s.double()[row]
    log_loo = denoiser.log_loo(batch.inputs(z, t), where)
    if isinstance(process, Absorbing):
        terms = mask_column_kl(log_loo, x0, ends, starts, process)
    else:
        terms = discrete_kl(log_loo, x0, noisy, ends, starts, discrete)
    total = _spread(terms, where, weight)
    if auxiliary == 0:
        return total
    extra = -log_loo.gather(-1, x0[..., None]).squeeze(-1)
    return total + _spread(auxiliary * extra, where, torch.ones_like(weight))


def has_reconstruction(denoiser: Denoiser) -> bool:
    """Whether the bound has a reconstruction term: z_0 is noisy, or tokens are not copied."""
    process = denoiser.process
    if not isinstance(process, DiscreteProcess):
        return isinstance(process, Gaussian)
    return not (denoiser.parameterization.carry_over and process.starts_clean)


def reconstruction_terms(
    denoiser: Denoiser, batch: Batch, z: Int[Tensor, "B L"], weight: Float[Tensor, " B"]
) -> Float[Tensor, "B L"]:
    """Weighted -log p(x0 | z_0) of the tokens that count.

    Args:
        denoiser: A model of a discrete process.
        batch: Clean tokens.
        z: Noisy ids at time 0.
        weight: One weight per row.
    """
    zero = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    if not isinstance(denoiser.process, Absorbing):
        return full_terms(denoiser, batch, z, zero, weight)
    where = _counted(denoiser, batch)  # the network's own distribution, nothing copied
    log_probs = denoiser.log_loo(batch.inputs(z, zero), where)
    return _spread(_nats(log_probs, batch, where), where, weight)


def full_terms(
    denoiser: Denoiser,
    batch: Batch,
    z: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    weight: Float[Tensor, " B"],
) -> Float[Tensor, "B L"]:
    """Weighted -log p(x0 | z_t) of the tokens that count, given all noisy tokens.

    Args:
        denoiser: A model of a discrete process.
        batch: Clean tokens.
        z: Noisy ids.
        t: Times of the rows.
        weight: One weight per row.
    """
    where = _counted(denoiser, batch)
    log_probs = denoiser.log_probs(batch.inputs(z, t), where)
    return _spread(_nats(log_probs, batch, where), where, weight)


def prior_terms(denoiser: Denoiser, batch: Batch) -> Float64[Tensor, "B L"]:
    """KL(q_1(. | x0) || prior) of the tokens that count; 0 if nothing of x0 is left at t = 1."""
    where = _counted(denoiser, batch)
    process = denoiser.process
    known = process if isinstance(process, TokenScheduled) else require_discrete(denoiser)
    terms = known.prior_kl(batch.tokens[where])
    return _spread(terms, where, terms.new_ones(len(where)))


# Gaussian diffusion on embeddings


def gaussian_nelbo(
    predicted: Float[Tensor, "*n d"], clean: Float[Tensor, "*n d"], level: Level
) -> Float64[Tensor, "*n"]:
    """The density of the Gaussian bound at time t: (1/2) (-SNR'(t)) ||e - prediction||^2.

    With SNR = exp(-g), -SNR' is g' exp(-g). The sum is over the coordinates of an embedding.
    Source: Kingma et al. 2021, arXiv:2107.00630, equation 17; Gulrajani and Hashimoto 2023,
    arXiv:2305.18619, section 2.

    Returns:
        Nats per unit time.
    """
    squared = ((clean - predicted).double() ** 2).sum(dim=-1)
    return 0.5 * level.dgamma * (-level.gamma).exp() * squared


def gaussian_prior_kl(
    clean: Float[Tensor, "*n d"], gamma: Float[Tensor, "*#n"]
) -> Float64[Tensor, "*n"]:
    """KL(N(A e, S^2) || N(0, 1)), summed over the coordinates of an embedding.

    Args:
        clean: Embeddings of the clean tokens.
        gamma: g(1).

    Returns:
        Nats, never negative.
    """
    signal, noise = (scale[..., None] for scale in scales(gamma))
    terms = noise**2 + (signal * clean.double()) ** 2 - 1 - 2 * noise.log()
    return 0.5 * terms.sum(dim=-1)


def gaussian_terms(
    denoiser: GaussianDenoiser,
    batch: Batch,
    inputs: NoisyEmbeddings,
    level: Level,
    weight: Float[Tensor, " B"],
) -> Float[Tensor, "B L"]:
    """Weighted density of the Gaussian bound at the rows' noise levels.

    Args:
        denoiser: The model.
        batch: Clean tokens.
        inputs: From ``GaussianDenoiser.corrupt``, at this level.
        level: Noise level of each row.
        weight: One over the density of the times.
    """
    where = inputs.noisy
    row = where.nonzero()[:, 0]
    predicted = denoiser.mean(denoiser(inputs, where))
    clean = denoiser.embed(batch.tokens[where])
    there = Level(level.gamma[row], level.dgamma[row])
    return _spread(gaussian_nelbo(predicted, clean, there), where, weight)


def gaussian_reconstruction(
    denoiser: GaussianDenoiser, batch: Batch, inputs: NoisyEmbeddings, weight: Float[Tensor, " B"]
) -> Float[Tensor, "B L"]:
    """Weighted -log p(x0 | z_0) of the noisy positions.

    Args:
        denoiser: The model.
        batch: Clean tokens.
        inputs: From ``GaussianDenoiser.corrupt``, at g(0).
        weight: One weight per row.
    """
    where = inputs.noisy
    return _spread(_nats(denoiser(inputs, where), batch, where), where, weight)


def gaussian_prior(denoiser: GaussianDenoiser, batch: Batch) -> Float64[Tensor, "B L"]:
    """KL(q_1(. | x0) || N(0, 1)) of the tokens that count."""
    where = _counted(denoiser, batch)
    last = denoiser.schedule(where.new_ones((), dtype=torch.float64)).gamma
    terms = gaussian_prior_kl(denoiser.embed(batch.tokens[where]), last)
    return _spread(terms, where, terms.new_ones(len(where)))


def require_discrete(denoiser: Denoiser) -> DiscreteProcess:
    """Return the process of a model, which must be discrete.

    Raises:
        ValueError: If the process is not discrete.
    """
    process = denoiser.process
    if not isinstance(process, DiscreteProcess):
        raise ValueError(
            "losses.denoiser must have a discrete process on whole rows, got the process "
            f"{process.name}; choose an objective that supports it"
        )
    return process


def _counted(denoiser: Denoiser, batch: Batch) -> Tensor:
    return batch.loss_mask & (batch.tokens != denoiser.process.unknown_id)


def _nats(log_probs: Tensor, batch: Batch, where: Tensor) -> Tensor:
    return -log_probs.gather(-1, batch.tokens[where][:, None]).squeeze(-1)


def _spread(terms: Tensor, where: Tensor, weight: Tensor) -> Tensor:
    """Write terms of single positions into ``[B, L]``, times the weights of their rows."""
    scaled = terms * weight.to(terms.dtype)[where.nonzero()[:, 0]]
    return scaled.new_zeros(where.shape).masked_scatter(where, scaled)
