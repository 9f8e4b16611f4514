"""The check of a formula of one's own: that it compiles, its derivatives, its accuracy."""
