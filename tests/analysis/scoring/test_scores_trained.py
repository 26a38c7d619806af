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


def test_trained_layers_are_ranked_as_in_the_paper() -> None:
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


def test_a_regression_student_is_attention_on_the_tokens_of_its_task() -> None:
    task = uh.tasks.InContextRegression(2, 1, 8)

    def student(width, *, key):
        return uh.GatedRNN.init(d_in=3, hidden=width, gated=width, d_out=1, key=key)

    run = uh.train(student, task, uh.Recipe.fast(steps=STEPS), widths=WIDTH, key=jax.random.key(1))
    untrained = student(WIDTH, key=jax.random.key(1))
    key = jax.random.key(2)
    on_task, before = (uh.attention_score(m, key=key, task=task) for m in (run.best(), untrained))
    assert on_task.score > 0.97 and before.score < 0.1
    # On other tokens no gradient has told it what to do.
    elsewhere = uh.attention_score(run.best(), key=key)
    assert elsewhere.score + 3 * elsewhere.errors.score < on_task.score
