"""An LSTM and a GRU trained in PyTorch, scored and ranked beside students trained here.

All imitate one linear attention. Those of PyTorch are an nn.Sequential of an nn.Linear, an nn.LSTM
or an nn.GRU, and an nn.Linear, trained by torch.optim.Adam; `uh.attention_score` takes them as they
are. It needs PyTorch: .venv-bridges/bin/python examples/torch_students.py 2000
"""

import sys

import jax
import numpy as np
import torch
from torch import nn

import underhood as uh

D, LENGTH, WIDTH, BATCH, RATE = 2, 16, 32, 64, 3e-3


def outputs_of(student: nn.Sequential, xs: torch.Tensor) -> torch.Tensor:
    """Run a Sequential whose second part returns its last state too."""
    embed, rnn, readout = student
    return readout(rnn(embed(xs))[0])


def train_in_torch(kind: type[nn.Module], task: uh.tasks.TeacherStudent, steps: int) -> nn.Module:
    """Return a student after some steps of Adam whose rate falls to zero."""
    torch.manual_seed(0)
    student = nn.Sequential(
        nn.Linear(D, WIDTH), kind(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, D)
    )
    optimiser = torch.optim.Adam(student.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    teacher = task.attention
    W_V, W_K, W_Q = (torch.tensor(np.asarray(W)) for W in (teacher.W_V, teacher.W_K, teacher.W_Q))
    for _ in range(steps):
        xs = torch.randn(BATCH, LENGTH, D)
        memory = torch.cumsum((xs @ W_V.T)[..., None] * (xs @ W_K.T)[..., None, :], 1)
        targets = (memory @ (xs @ W_Q.T)[..., None])[..., 0]
        loss = torch.mean((outputs_of(student, xs) - targets) ** 2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return student


def train_here(make: type[uh.Layer], task: uh.tasks.TeacherStudent, steps: int) -> uh.Layer:
    """Return a student of the same sizes, trained by `uh.train`."""

    def student(width, *, key):
        if make is uh.GatedRNN:
            return uh.GatedRNN.init(d_in=D, hidden=width, gated=width, d_out=D, key=key)
        return uh.Stack.init(
            lambda hidden, *, key: make.init(d_in=hidden, hidden=hidden, key=key),
            d_in=D,
            hidden=width,
            d_out=D,
            key=key,
        )

    recipe = uh.Recipe.fast(steps, learning_rate=RATE)
    return uh.train(student, task, recipe, widths=(WIDTH,), key=jax.random.key(1)).best()


def main(steps: int = 2000) -> dict[str, uh.AttentionScore]:
    task = uh.tasks.TeacherStudent.random(D, length=LENGTH, key=jax.random.key(0))
    students = {
        "nn.LSTM, trained in PyTorch": train_in_torch(nn.LSTM, task, steps),
        "nn.GRU, trained in PyTorch": train_in_torch(nn.GRU, task, steps),
        "LSTM, trained here": train_here(uh.LSTM, task, steps),
        "GRU, trained here": train_here(uh.GRU, task, steps),
        "gated RNN, trained here": train_here(uh.GatedRNN, task, steps),
    }
    batch = task.sample(jax.random.key(3), 256)
    size = float(np.mean(np.asarray(batch.targets) ** 2))
    scores, losses = {}, {}
    for name, student in students.items():
        layer = uh.from_torch(student) if isinstance(student, nn.Module) else student
        missed = np.asarray(jax.vmap(layer)(batch.inputs)) - np.asarray(batch.targets)
        scores[name] = uh.attention_score(student, key=jax.random.key(2), time=LENGTH)
        losses[name] = float(np.mean(missed**2)) / size
    print("| student | loss over the targets' variance | attention score |\n|---|---|---|")
    for name in sorted(scores, key=lambda name: -scores[name].score):
        result = scores[name]
        print(f"| {name} | {losses[name]:.1e} | {result.score:.3f} ± {result.errors.score:.3f} |")
    return scores


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
