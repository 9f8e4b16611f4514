"""The kinds of losses: pointwise, and over rows."""
