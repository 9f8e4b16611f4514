"""The entrance: arguments, calls, gradients."""
