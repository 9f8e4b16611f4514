"""Robust linear regression by gradient descent on CuPy arrays, or NumPy arrays without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_losses import huber_loss, value_and_grad


def array_module() -> Any:
    """CuPy where it finds a GPU, else NumPy."""
    try:
        import cupy

        cupy.cuda.runtime.getDevice()
        cupy.zeros(1)
    except Exception:
        return np
    return cupy


def main(steps: int = 300) -> float:
    """Fit a line to points with outliers and return the error of its slope."""
    xp = array_module()
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 10_000).astype(np.float32)
    y = 3 * x + 1 + 0.1 * rng.standard_normal(x.size).astype(np.float32)
    y[::20] += 30  # outliers, which a squared error would follow
    features = xp.asarray(np.stack([x, np.ones_like(x)]))
    target = xp.asarray(y)
    weights = xp.zeros(2, xp.float32)
    loss_and_gradient = value_and_grad(huber_loss)
    for _ in range(steps):
        _, gradient = loss_and_gradient(weights @ features, target, delta=0.5)
        weights -= 1.0 * (features @ gradient)
    slope, intercept = (float(w) for w in weights)
    print(f"{xp.__name__}: y = {slope:.3f} x + {intercept:.3f}")
    return abs(slope - 3)


if __name__ == "__main__":
    main()
