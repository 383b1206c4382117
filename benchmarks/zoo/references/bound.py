"""A lower bound on the errors of any filter or smoother of the paper's networks.

For each unit, a filter reads the observations and also knows the true paths of all other units. It has more information
than any method that only reads the observations. So its expected squared error is at most that of the exact posterior
mean. Only one unit is unknown, so it can be computed exactly, on a grid.
"""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import t as student

from backstream.models import ChaoticRNN

HALF_WIDTH = 1.0
"""Of the grid around the true state: ten standard deviations of the noise."""


def bound(network: ChaoticRNN, states: np.ndarray, ys: np.ndarray, spacing: float = 0.025) -> tuple[np.ndarray, ...]:
    """Means (T, d) of each unit's state given its observations up to the row, or all, and the other units' paths."""
    W, rate = np.asarray(network.W, float), float(network.step / network.tau)
    noise, gain = float(network.transition_scale), rate * float(network.gamma)
    nodes = states[..., None] + np.arange(-HALF_WIDTH, HALF_WIDTH + spacing / 2, spacing)  # (T, d, n)
    seen = student.logpdf(ys[..., None], float(network.df), nodes, float(network.emission_scale))

    def others(t):
        """log p(x_{t+1} of the other units | x_t), up to a constant, for each node of each unit: (d, n)."""
        squashed = np.tanh(states[t])
        away = states[t + 1] - (1 - rate) * states[t] - gain * (W @ squashed)  # (d,): what noise did
        change = np.tanh(nodes[t]) - squashed[:, None]  # of unit i, at each node
        linear, square = away @ W - away * np.diag(W), (W**2).sum(0) - np.diag(W) ** 2
        return (gain * linear[:, None] * change - 0.5 * gain**2 * square[:, None] * change**2) / noise**2

    def moved(t):
        """log p(x_{t+1} of unit i | x_t) from each node to each: (d, n, n)."""
        squashed = np.tanh(states[t])
        driven = gain * (W @ squashed - np.diag(W) * squashed)
        mean = (1 - rate) * nodes[t] + gain * np.diag(W)[:, None] * np.tanh(nodes[t]) + driven[:, None]
        return -0.5 * ((nodes[t + 1][:, None, :] - mean[:, :, None]) / noise) ** 2

    log_p = -0.5 * (nodes[0] / noise) ** 2 + seen[0]
    forward = [log_p]
    for t in range(len(ys) - 1):
        told = forward[-1] + others(t)
        log_p = _through(told[:, None, :], moved(t).swapaxes(1, 2)) + seen[t + 1]
        forward.append(log_p - logsumexp(log_p, 1, keepdims=True))
    backward = [np.zeros_like(log_p)]
    for t in range(len(ys) - 2, -1, -1):
        log_b = _through((backward[-1] + seen[t + 1])[:, None, :], moved(t)) + others(t)
        backward.append(log_b - log_b.max(1, keepdims=True))
    filtered = np.stack(forward)
    return _mean(filtered, nodes), _mean(filtered + np.stack(backward[::-1]), nodes)


def _through(log_p: np.ndarray, log_kernel: np.ndarray) -> np.ndarray:
    """The logarithm of the sum over the last axis."""
    both = log_p + log_kernel
    top = both.max(-1, keepdims=True)
    return np.log(np.exp(both - top).sum(-1)) + top[..., 0]


def _mean(log_p: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    weight = np.exp(log_p - log_p.max(-1, keepdims=True))
    return (weight * nodes).sum(-1) / weight.sum(-1)
