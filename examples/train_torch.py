"""Train a torch network with a module of `cupy_losses.nn`, on a GPU if there is one.

For each patient it predicts the progression of diabetes, and how far off that may be: a mean and a
variance, which `GaussianNLLLoss` fits together. `--output FILE` draws the bands from the 10th to
the 90th percentile for patients that were not fitted.
"""

from __future__ import annotations

import common
import torch

from cupy_losses import nn

REACH = 1.2816  # of those percentiles of a normal distribution, in standard deviations


def main(steps: int = 200, file: str | None = None) -> float:
    """Train, and return the part of other patients that is inside the bands, best 0.8."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    fitted, tested = common.diabetes()
    features, target = (torch.tensor(part, device=device) for part in fitted)
    centre, spread = target.mean(), target.std()
    model = torch.nn.Sequential(
        torch.nn.Linear(features.shape[1], 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    ).to(device)
    criterion = nn.GaussianNLLLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        mean, log_variance = model(features).unbind(dim=1)
        loss = criterion(mean, (target - centre) / spread, log_variance.exp())
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f}")

    with torch.no_grad():
        others = torch.tensor(tested.features, device=device)
        mean, log_variance = model(others).unbind(dim=1)
        deviation = (log_variance / 2).exp()
        bands = [mean + reach * deviation for reach in (-REACH, 0.0, REACH)]
    low, middle, high = ((centre + spread * band).cpu().numpy() for band in bands)
    inside = float(((low < tested.target) & (tested.target < high)).mean())
    print(f"{inside:.0%} of other patients are inside the bands of 80%")
    if file:
        common.draw(file, lambda axes: common.paint_bands(axes, (low, middle, high), tested.target))
    return inside


if __name__ == "__main__":
    main(file=common.output(__doc__))
