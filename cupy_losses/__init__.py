"""Loss functions and their gradients as fused CUDA kernels, for CuPy, torch and NumPy arrays."""

from ._evaluate import grad, value_and_grad
from .regression import huber_loss, l1_loss, mse_loss, smooth_l1_loss

__version__ = "0.1.0"

__all__ = [
    "grad",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
    "value_and_grad",
]
