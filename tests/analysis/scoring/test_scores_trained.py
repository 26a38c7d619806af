"""On one trained task, attention_score ranks gated RNN above LRU In-Out above LSTM and GRU."""

import jax

import underhood as uh

D, WIDTH, STEPS = 2, 16, 1000


def stack(make):
    def student(width, *, key):
        return uh.Stack.init(make, d_in=D, hidden=width, d_out=D, key=key)

    return student


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=D, hidden=width, gated=width, d_out=D, key=key)


STUDENTS = {
    "gated RNN": gated,
    "LRU In-Out": stack(lambda w, *, key: uh.LRUInOut.init(d_in=w, hidden=w, d_out=w, key=key)),
    "LSTM": stack(lambda w, *, key: uh.LSTM.init(d_in=w, hidden=w, key=key)),
    "GRU": stack(lambda w, *, key: uh.GRU.init(d_in=w, hidden=w, key=key)),
}


def test_trained_layers_are_ranked_as_in_the_paper(quick_compile) -> None:
    task = uh.tasks.TeacherStudent.random(D, length=8, key=jax.random.key(0))
    recipe = uh.Recipe.fast(steps=STEPS, learning_rate=1e-2)
    missed = {}
    for name, student in STUDENTS.items():
        run = uh.train(student, task, recipe, widths=WIDTH, key=jax.random.key(1))
        result = uh.attention_score(run.best(), key=jax.random.key(2), time=8)
        missed[name] = 1 - result.score
    # Each step down the ranking is more than a factor of three.
    assert 3 * missed["gated RNN"] < missed["LRU In-Out"]
    assert 3 * missed["LRU In-Out"] < min(missed["LSTM"], missed["GRU"])
