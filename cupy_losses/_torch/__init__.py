"""torch: tensors and autograd."""
