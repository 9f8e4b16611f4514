"""Loss functions and their gradients as fused CUDA kernels, for CuPy, torch and NumPy arrays."""

import sys as _sys

from . import classification, custom, divergence, embedding, multiclass, ranking, regression
from ._acceleration.switch import accelerate
from ._api.check import check_values
from ._api.derivatives import grad_and_hess, hvp, jvp, vjp
from ._api.transforms import grad, value_and_grad
from ._device.driver import MissingGPUError
from .classification import *
from .custom import *
from .divergence import *
from .embedding import *
from .multiclass import *
from .ranking import *
from .regression import *

__version__ = "0.1.0"

if "torch" in _sys.modules:
    # A saved program of torch that calls losses is then loaded as one of torch's own.
    from ._libraries import torch as _  # noqa: F401

__all__ = ["MissingGPUError", "accelerate", "check_values", "grad", "grad_and_hess", "hvp", "jvp"]
__all__ += ["value_and_grad", "vjp"]
__all__ += regression.__all__
__all__ += classification.__all__
__all__ += ranking.__all__
__all__ += divergence.__all__
__all__ += multiclass.__all__
__all__ += embedding.__all__
__all__ += custom.__all__
