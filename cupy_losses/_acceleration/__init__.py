"""torch's own losses, computed by this package: rules, replacement, counts, report."""
