"""The libraries of arrays: a file each."""
