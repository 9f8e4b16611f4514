"""The host backend, on NumPy."""
