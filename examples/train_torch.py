"""Fit a small torch network with a loss of this package, on a GPU if there is one."""

from __future__ import annotations

import torch

from cupy_losses import smooth_l1_loss


def main(steps: int = 200) -> float:
    """Train and return the last loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 512, device=device).unsqueeze(1)
    y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = smooth_l1_loss(model(x), y, beta=0.2)
        loss.backward()
        optimizer.step()
    print(f"loss on {device} after {steps} steps: {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    main()
