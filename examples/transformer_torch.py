"""Train a small transformer with torch alone: it knows nothing of this package.

`python -m cupy_losses accelerate --report examples/transformer_torch.py` runs it with the losses
of this package, on a GPU. Its text is drawn from a grammar of its own, so that it needs no data.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What every token makes of those before it."""
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        out: torch.Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """Attention and a network of two layers, each beside a way around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, of the shape of its input."""
        x = x + self.attention(self.norms[0](x))
        changed: torch.Tensor = x + self.network(self.norms[1](x))
        return changed


class Transformer(nn.Module):
    """A decoder: the logits of the next token at every position."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Text:
    """Texts by a grammar of their own: a token allows few next ones, a third of them only one."""

    def __init__(self, texts: int, length: int, vocabulary: int, device: str) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.device = device
        following = torch.randint(vocabulary, (vocabulary, 4), generator=self.generator)
        token = torch.randint(vocabulary, (texts,), generator=self.generator)
        tokens = [token]
        for _ in range(length):
            choice = torch.randint(4, (texts,), generator=self.generator)
            token = following[token, choice * (token % 3 > 0)]
            tokens.append(token)
        self.texts = torch.stack(tokens, dim=1).to(device)

    def draw(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and at each position the token that follows; the first few are not asked for."""
        chosen = torch.randint(len(self.texts), (batch,), generator=self.generator)
        texts = self.texts[chosen.to(self.device)]
        following = texts[:, 1:].clone()
        following[:, :4] = -100
        return texts[:, :-1], following


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the tokens that follow."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=-100)


def train(options: argparse.Namespace) -> list[float]:
    """Train, and return the losses of every tenth step and, last, of one more batch."""
    torch.manual_seed(0)
    text = Text(2048, options.length, options.vocabulary, options.device)
    model = Transformer(options.vocabulary, options.length, options.width, options.layers)
    model.to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    warm_up = max(1, options.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / options.steps)
        ),
    )
    precise = torch.autocast(options.device, dtype=torch.bfloat16)
    curve = []
    for step in range(options.steps):
        tokens, following = text.draw(options.batch)
        optimizer.zero_grad(set_to_none=True)
        with precise:
            loss = loss_of(model(tokens), following)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            curve.append(loss.item())
            print(f"step {step}: {curve[-1]:.4f}", flush=True)
    with torch.no_grad(), precise:
        tokens, following = text.draw(options.batch)
        curve.append(loss_of(model(tokens), following).item())
        print(f"last batch: {curve[-1]:.4f}")
    return curve


# By device: what keeps a GPU busy is too much for a CPU.
SIZES = {
    "gpu": {"batch": 16, "length": 512, "vocabulary": 50257, "width": 512, "layers": 4},
    "cpu": {"batch": 8, "length": 64, "vocabulary": 1024, "width": 128, "layers": 2},
}


def main(arguments: list[str] | None = None) -> list[float]:
    """Train as the command line says, and print the losses."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to train; the sizes that a CPU has by default are smaller",
    )
    device = first.parse_known_args(arguments)[0].device
    sizes = SIZES["cpu" if device.startswith("cpu") else "gpu"]
    parser = argparse.ArgumentParser(
        description="Train a small transformer to predict tokens.",
        parents=[first],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, text in {
        "batch": "texts of a batch",
        "length": "tokens of a text",
        "vocabulary": "tokens that there are",
        "width": "numbers for each token",
        "layers": "blocks of attention and a network",
    }.items():
        parser.add_argument(f"--{name}", type=int, default=sizes[name], help=text)
    parser.add_argument("--steps", type=int, default=100, help="batches to train with")
    parser.add_argument("--rate", type=float, default=1e-3, help="the largest learning rate")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    curve = train(options)
    print(f"{time.perf_counter() - start:.2f} s on {options.device}", file=sys.stderr)
    return curve


if __name__ == "__main__":
    main()
