"""What a loss, a call, a request and a reduction are; shapes, dtypes, the trace of a formula.

Nothing here computes a loss.
"""
