"""Semantic segmentation in torch: which digit is written at each pixel of small images.

The images are of handwritten digits, four of scikit-learn's in each. `cross_entropy` takes logits
of shape (images, classes, height, width) and one class for each pixel. Paper is a class of its own,
with less weight, as most pixels are; faint strokes are ignored. `pip install scikit-learn`;
`--output FILE` draws an image with what the network makes of it.
"""

from __future__ import annotations

from typing import Any

import common
import torch
from torch import nn

from cupy_losses import cross_entropy

PAPER, IGNORED = 10, -100
SIZE = 8  # of a digit, in pixels


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """The strokes of all digits, from 0 to 1, and which digits they are."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    return images, torch.tensor(digits.target)


def draw(
    images: torch.Tensor, digits: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """So many images of four digits, and the class of each pixel."""
    chosen = torch.randint(len(images), (count, 2, 2))
    strokes, written = images[chosen], digits[chosen][..., None, None]
    classes = torch.where(strokes > 0.5, written, IGNORED)
    classes = torch.where(strokes < 0.2, PAPER, classes)

    def tiled(parts: torch.Tensor) -> torch.Tensor:
        return parts.permute(0, 1, 3, 2, 4).reshape(count, 2 * SIZE, 2 * SIZE)

    return tiled(strokes).unsqueeze(1), tiled(classes)


def network(width: int = 24) -> nn.Module:
    """A small convolutional network, each output of which sees 13 × 13 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for dilation in (1, 2, 2):
        layers += [nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, PAPER + 1, 1))


def main(steps: int = 300, file: str | None = None) -> float:
    """Train, and return the part of stroke pixels that are classified right in other images."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    images, digits = load()
    weight = torch.ones(PAPER + 1, device=device)
    weight[PAPER] = 0.2
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        x, classes = (part.to(device) for part in draw(images[300:], digits[300:], 16))
        optimizer.zero_grad()
        loss = cross_entropy(model(x), classes, weight=weight, ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f}")
    x, classes = (part.to(device) for part in draw(images[:300], digits[:300], 64))
    with torch.no_grad():
        found = model(x).argmax(dim=1)
    strokes = (classes != PAPER) & (classes != IGNORED)
    right = float((found == classes)[strokes].float().mean())
    print(f"{right:.0%} of the stroke pixels of other digits are classified right")

    def paint(axes: Any) -> None:
        seen, digit = x[0, 0].cpu(), found[0].cpu().float()
        axes.imshow(seen, cmap="Greys", extent=(0, 16, 16, 0))
        digit[digit == PAPER] = torch.nan
        colours = axes.imshow(digit, cmap="tab10", vmin=-0.5, vmax=9.5, extent=(17, 33, 16, 0))
        axes.figure.colorbar(colours, ticks=range(10), label="digit")
        axes.set(title="strokes, and the digit at each pixel", xlim=(0, 33), xticks=[], yticks=[])

    if file:
        common.draw(file, paint)
    return right


if __name__ == "__main__":
    main(file=common.output(__doc__, "sklearn"))
