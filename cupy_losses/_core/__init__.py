"""What a loss, a call, a request and a reduction are; shapes, dtypes, the trace of a formula.

Of losses nothing is computed here but a traced formula, step by step.
"""
