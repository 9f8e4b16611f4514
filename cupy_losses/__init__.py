"""Loss functions and their gradients as fused CUDA kernels, for CuPy, torch and NumPy arrays."""

from ._api.check import check_values
from ._api.transforms import grad, value_and_grad
from .classification import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    multilabel_soft_margin_loss,
    sigmoid_focal_loss,
    soft_margin_loss,
)
from .custom import pointwise_loss
from .divergence import gaussian_nll_loss, kl_div, poisson_nll_loss
from .embedding import (
    cosine_embedding_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from .multiclass import cross_entropy, multi_margin_loss, multilabel_margin_loss, nll_loss
from .ranking import (
    hinge_embedding_loss,
    hinge_loss,
    margin_ranking_loss,
    squared_hinge_loss,
)
from .regression import (
    charbonnier_loss,
    huber_loss,
    l1_loss,
    log_cosh_loss,
    mse_loss,
    quantile_loss,
    smooth_l1_loss,
)

__version__ = "0.1.0"

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "charbonnier_loss",
    "check_values",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "grad",
    "hinge_embedding_loss",
    "hinge_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "log_cosh_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "pointwise_loss",
    "poisson_nll_loss",
    "quantile_loss",
    "sigmoid_focal_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "squared_hinge_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "value_and_grad",
]
