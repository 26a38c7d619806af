"""The whole story: a teacher, a student that imitates it, and the attention inside the student.

A gated RNN with random weights sees inputs and the outputs of a random linear attention. Training
makes it compute the same function; polishing and reducing bring out the digits and the size;
decompiling hands the teacher's matrices back, up to one scale, with a bound on the difference. In
the end the attention that was found is compiled into an LSTM.

    python examples/whole_story.py            d = 3, half a minute on two cores
    python examples/whole_story.py --d 2      a few seconds
"""

import argparse

import jax
import numpy as np

import underhood as uh


def main(d: int = 3, width: int = 30, steps: int = 6000) -> uh.Decompilation:
    task = uh.tasks.TeacherStudent.random(d, length=16, key=jax.random.key(0))

    def student(width, *, key):
        return uh.GatedRNN.init(d_in=d, hidden=width, gated=width, d_out=d, key=key)

    run = uh.train(student, task, uh.Recipe.fast(steps), widths=width, key=jax.random.key(1))
    trained = run.best()
    print(
        f"trained:   {trained.neurons} neurons, loss {run.rows[0]['normalised_loss']:.0e}, ", end=""
    )
    print(f"{uh.decompile(trained).residual:.0e} of it is not attention")

    polished = uh.polish(trained, task, key=jax.random.key(2))
    print(f"polished:  {polished.model.neurons} neurons, loss {polished.loss:.0e}")

    small = uh.reduce(polished.model)
    print(f"reduced:   {small.model.neurons} neurons, {small.model.gate_width} gate outputs")

    decompiled = uh.decompile(small.model)
    W_V, teachers = np.asarray(decompiled.attention.W_V), np.asarray(task.attention.W_V, float)
    scale = np.sum(W_V * teachers) / np.sum(teachers**2)
    print(f"decompiled: W_V off by {np.abs(W_V / scale - teachers).max():.0e}, ", end="")
    bound = decompiled.certificate.bound(radius=2.0, time=100)
    print(f"no sequence of 100 tokens with |x| ≤ 2 differs by more than {bound:.0e}")

    lstm = uh.compile(decompiled.attention, target="lstm")
    print(f"compiled:  an LSTM of {lstm.neurons} neurons, ", end="")
    print(f"error {lstm.error(key=jax.random.key(3)):.0e}")
    return decompiled


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=3)
    parser.add_argument("--width", type=int, default=30)
    parser.add_argument("--steps", type=int, default=6000)
    given = parser.parse_args()
    main(given.d, given.width, given.steps)
