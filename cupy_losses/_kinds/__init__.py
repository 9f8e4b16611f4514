"""The kinds of losses: pointwise, over rows, and over rows of several labels."""
