"""The types of `cupy_losses.nn`. Written by `python docs/declarations.py`."""

import torch
from torch import Tensor

from .._core.types import Array, Reduction

class CharbonnierLoss(torch.nn.Module):
    """The module of `charbonnier_loss`."""

    eps: float
    reduction: Reduction
    def __init__(
        self,
        eps: float = 0.001,
        *,
        reduction: Reduction = "mean",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class HuberLoss(torch.nn.HuberLoss):
    """The module of `huber_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class L1Loss(torch.nn.L1Loss):
    """The module of `l1_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class LogCoshLoss(torch.nn.Module):
    """The module of `log_cosh_loss`."""

    reduction: Reduction
    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class MSELoss(torch.nn.MSELoss):
    """The module of `mse_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class QuantileLoss(torch.nn.Module):
    """The module of `quantile_loss`."""

    quantile: float
    reduction: Reduction
    def __init__(
        self,
        quantile: float = 0.5,
        *,
        reduction: Reduction = "mean",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class SmoothL1Loss(torch.nn.SmoothL1Loss):
    """The module of `smooth_l1_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class BCELoss(torch.nn.BCELoss):
    """The module of `binary_cross_entropy`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class BCEWithLogitsLoss(torch.nn.BCEWithLogitsLoss):
    """The module of `binary_cross_entropy_with_logits`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class MultiLabelSoftMarginLoss(torch.nn.MultiLabelSoftMarginLoss):
    """The module of `multilabel_soft_margin_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class SigmoidFocalLoss(torch.nn.Module):
    """The module of `sigmoid_focal_loss`."""

    alpha: float
    gamma: float
    reduction: Reduction
    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        *,
        reduction: Reduction = "none",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class SoftMarginLoss(torch.nn.SoftMarginLoss):
    """The module of `soft_margin_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class HingeEmbeddingLoss(torch.nn.HingeEmbeddingLoss):
    """The module of `hinge_embedding_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class HingeLoss(torch.nn.Module):
    """The module of `hinge_loss`."""

    reduction: Reduction
    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class MarginRankingLoss(torch.nn.MarginRankingLoss):
    """The module of `margin_ranking_loss`."""

    def __call__(
        self,
        input1: Tensor,
        input2: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class SquaredHingeLoss(torch.nn.Module):
    """The module of `squared_hinge_loss`."""

    reduction: Reduction
    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
    ) -> None: ...
    def forward(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Array,
        *,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Tensor: ...

class GaussianNLLLoss(torch.nn.GaussianNLLLoss):
    """The module of `gaussian_nll_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
        var: Tensor | float,
    ) -> Tensor: ...

class KLDivLoss(torch.nn.KLDivLoss):
    """The module of `kl_div`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class PoissonNLLLoss(torch.nn.PoissonNLLLoss):
    """The module of `poisson_nll_loss`."""

    def __call__(
        self,
        log_input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """The module of `cross_entropy`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class MultiMarginLoss(torch.nn.MultiMarginLoss):
    """The module of `multi_margin_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class MultiLabelMarginLoss(torch.nn.MultiLabelMarginLoss):
    """The module of `multilabel_margin_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class NLLLoss(torch.nn.NLLLoss):
    """The module of `nll_loss`."""

    def __call__(
        self,
        input: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class CosineEmbeddingLoss(torch.nn.CosineEmbeddingLoss):
    """The module of `cosine_embedding_loss`."""

    def __call__(
        self,
        input1: Tensor,
        input2: Tensor,
        target: Tensor,
    ) -> Tensor: ...

class TripletMarginLoss(torch.nn.TripletMarginLoss):
    """The module of `triplet_margin_loss`."""

    def __call__(
        self,
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor,
    ) -> Tensor: ...

class TripletMarginWithDistanceLoss(torch.nn.TripletMarginWithDistanceLoss):
    """The module of `triplet_margin_with_distance_loss`."""

    def __call__(
        self,
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor,
    ) -> Tensor: ...
