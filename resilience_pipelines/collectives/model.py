"""The small model that the training job trains: its state, one step of it, and the state's hash.

What belongs here: arithmetic that is the same in every run with the same number of ranks, so that a
job that came back can be compared with the one before, bit for bit. What does not: communication
(`rank`), and files (`checkpoints`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

WIDTH = 256
BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9

State = dict[str, Any]
"""Tensors by name: parameters, and the momentum of each as `NAME.momentum`."""

_SHAPES = {
    "layer1.weight": (WIDTH, WIDTH),
    "layer1.bias": (WIDTH,),
    "layer2.weight": (WIDTH, WIDTH),
    "layer2.bias": (WIDTH,),
    "head.weight": (WIDTH, 1),
}


def new_state(seed: int, device: str) -> State:
    """Parameters from a seed, and no momentum yet."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}
    for name, shape in _SHAPES.items():
        # Made on the CPU: a device has a generator of its own.
        values = torch.randn(shape, generator=generator) / WIDTH**0.5
        state[name] = values.to(device)
        state[f"{name}.momentum"] = torch.zeros(shape, device=device)
    return state


def gradients(state: State, seed: int, step: int, rank: int) -> tuple[Any, float]:
    """All gradients of a rank's own batch in one flat tensor, and its loss."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
    device = state["head.weight"].device
    data = torch.randn((BATCH, WIDTH), generator=generator).to(device)
    wanted = data[:, :1].sin()
    leaves = [state[name].detach().requires_grad_() for name in _SHAPES]
    weight1, bias1, weight2, bias2, head = leaves
    hidden = torch.tanh(data @ weight1 + bias1)
    hidden = torch.tanh(hidden @ weight2 + bias2)
    loss = ((hidden @ head - wanted) ** 2).mean()
    found = torch.autograd.grad(loss, leaves)
    return torch.cat([gradient.reshape(-1) for gradient in found]), float(loss.detach())


def update(state: State, flat: Any) -> None:
    """Stochastic gradient descent with momentum, in place."""
    offset = 0
    for name in _SHAPES:
        parameter, momentum = state[name], state[f"{name}.momentum"]
        count = parameter.numel()
        momentum.mul_(MOMENTUM).add_(flat[offset : offset + count].reshape(parameter.shape))
        parameter.sub_(momentum, alpha=LEARNING_RATE)
        offset += count


def state_sha256(state: State) -> str:
    """The SHA-256 over all tensors in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
