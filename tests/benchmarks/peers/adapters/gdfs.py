"""Greedy dynamic feature selection, small and from the paper: an order of groups for each row.

Covert et al. 2023, "Learning to Maximize Mutual Information for Dynamic Feature Selection": a policy network selects
the next group from the values seen so far, and a predictor network answers from them. Both train jointly: each step
adds a sample of the Concrete distribution to the mask, the predictor's loss has a gradient for the policy, and the
next step starts from the hard selection without a gradient.

JAX, since the packages that PyTorch needs on Linux are gigabytes of CUDA, and a processor is enough here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.peers.adapters.acquisition import Predictor, timed
from benchmarks.peers.adapters.worker import Problem, Timed

HIDDEN, DROPOUT, BATCH = 128, 0.3, 128
TEMPERATURES = tuple(float(value) for value in np.geomspace(1.0, 0.1, 5))
RATES = (1e-3, 2e-4, 4e-5)
"""Learning rates; the next one follows after `PATIENCE` epochs without a lower loss of validation."""

PATIENCE, EPOCHS = 3, 100
SELECTED = 1e6
"""Subtracted from the score of a group that is already selected."""


def gdfs(problem: Problem, options: dict[str, Any]) -> Timed:
    """Train predictor and policy for the largest budget; every smaller one is a prefix of each row's order."""
    import jax
    import jax.numpy as jnp

    X, Xv = (jnp.asarray(problem[name], jnp.float32) for name in ("X", "Xv"))
    y, yv = jnp.asarray(problem["y"]), jnp.asarray(problem["yv"])
    sizes, steps, classes = problem["sizes"], options["budgets"][-1], options["classes"]
    J, group = len(sizes), np.repeat(np.arange(len(sizes)), sizes)

    def created(key: Any, outputs: int) -> Any:
        widths = (len(group) + J, HIDDEN, HIDDEN, outputs)
        shapes = list(pairwise(widths))
        keys = jax.random.split(key, len(shapes))
        pairs = zip(keys, shapes, strict=True)
        return [(jax.random.normal(k, shape) * np.sqrt(2 / shape[0]), jnp.zeros(shape[1])) for k, shape in pairs]

    def scores(network: Any, x: Any, mask: Any, key: Any = None) -> Any:
        """Return the outputs of a network for the values of a mask (n, J); without `key`, no dropout."""
        hidden = jnp.concatenate([x * mask[:, group], mask], axis=1)
        for depth, (W, b) in enumerate(network[:-1]):
            hidden = jax.nn.relu(hidden @ W + b)
            if key is not None:
                kept = jax.random.bernoulli(jax.random.fold_in(key, depth), 1 - DROPOUT, hidden.shape)
                hidden = jnp.where(kept, hidden / (1 - DROPOUT), 0.0)
        W, b = network[-1]
        return hidden @ W + b

    def loss(logits: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()

    def pretraining(networks: Any, x: Any, labels: Any, key: Any, _: Any) -> Any:
        """Return the predictor's loss for random masks of every size."""
        share, drawn, dropout = jax.random.split(key, 3)
        mask = jax.random.uniform(drawn, (len(x), J)) < jax.random.uniform(share, (len(x), 1))
        return loss(scores(networks["predictor"], x, mask.astype(jnp.float32), dropout), labels)

    def selection(networks: Any, x: Any, labels: Any, key: Any, temperature: Any) -> Any:
        """Return the mean loss of the steps, each by a relaxed selection of the policy."""

        def step(mask: Any, key: Any) -> Any:
            first, second, third = jax.random.split(key, 3)
            logits = scores(networks["policy"], x, mask, first) - SELECTED * mask
            soft = jax.nn.softmax((logits + jax.random.gumbel(second, logits.shape)) / temperature)
            found = scores(networks["predictor"], x, jnp.maximum(mask, soft), third)
            hard = jnp.maximum(mask, jax.nn.one_hot(soft.argmax(axis=1), J))
            return jax.lax.stop_gradient(hard), loss(found, labels)

        return jax.lax.scan(step, jnp.zeros((len(x), J)), jax.random.split(key, steps))[1].mean()

    def greedy(networks: Any, x: Any) -> Any:
        """Return the predictor's outputs after every step, (steps, n, classes)."""

        def step(mask: Any, _: Any) -> Any:
            chosen = (scores(networks["policy"], x, mask) - SELECTED * mask).argmax(axis=1)
            mask = jnp.maximum(mask, jax.nn.one_hot(chosen, J))
            return mask, scores(networks["predictor"], x, mask)

        return jax.lax.scan(step, jnp.zeros((len(x), J)), length=steps)[1]

    def epoch_of(objective: Callable[..., Any]) -> Any:
        """Return an epoch of Adam."""

        def update(state: Any, batch: Any) -> Any:
            networks, first, second, count, temperature, rate = state
            rows, key = batch
            slope = jax.grad(objective)(networks, X[rows], y[rows], key, temperature)
            count = count + 1
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slope)
            scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            moved = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), networks, first, second)
            return (moved, first, second, count, temperature, rate), None

        return jax.jit(lambda state, rows, keys: jax.lax.scan(update, state, (rows, keys))[0])

    def trained(networks: Any, epoch: Any, validation: Any, temperature: float, rng: Any) -> Any:
        """Return the networks of the least validation loss."""
        best, least = networks, float(validation(networks))
        for rate in RATES:
            zeros = jax.tree.map(jnp.zeros_like, best)
            state, waited = (best, zeros, zeros, 0.0, temperature, rate), 0
            for _ in range(EPOCHS):
                size = min(BATCH, len(X))
                rows = rng.permutation(len(X))[: len(X) // size * size].reshape(-1, size)
                key = jax.random.key(int(rng.integers(2**31)), impl="rbg")  # faster on a processor than the default
                state = epoch(state, rows, jax.random.split(key, len(rows)))
                found, waited = float(validation(state[0])), waited + 1
                if found < least:
                    best, least, waited = state[0], found, 0
                if waited == PATIENCE:
                    break
        return best

    def fit() -> list[Predictor]:
        rng = np.random.default_rng(options["seed"])
        keys = jax.random.split(jax.random.key(options["seed"]))
        networks = {"predictor": created(keys[0], classes), "policy": created(keys[1], J)}
        seen = jnp.asarray(rng.random((len(Xv), J)) < rng.random((len(Xv), 1)), jnp.float32)
        masked = jax.jit(lambda networks: loss(scores(networks["predictor"], Xv, seen), yv))
        networks = trained(networks, epoch_of(pretraining), masked, 1.0, rng)
        answers = jax.jit(lambda networks: jax.vmap(lambda logits: loss(logits, yv))(greedy(networks, Xv)).mean())
        epoch = epoch_of(selection)
        for temperature in TEMPERATURES:
            networks = trained(networks, epoch, answers, temperature, rng)
        likely = jax.jit(lambda x: jax.nn.softmax(greedy(networks, x)))

        def predict(rows: Any, budget: int) -> Any:
            return np.asarray(likely(jnp.asarray(rows, jnp.float32))[budget - 1])

        return [partial(predict, budget=budget) for budget in options["budgets"]]

    return timed(problem, fit)
