"""What a loss, a call, a request and a reduction are; shapes and dtypes. Pure arithmetic."""
