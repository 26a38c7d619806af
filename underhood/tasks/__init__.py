"""What to compute: the paper's tasks and their closed forms."""

from underhood.tasks.recall import AssociativeRecall as AssociativeRecall
from underhood.tasks.regression import (
    InContextRegression as InContextRegression,
    gradient_descent_loss as gradient_descent_loss,
    optimal_step as optimal_step,
)
from underhood.tasks.task import Batch as Batch, Task as Task
from underhood.tasks.teacher_student import TeacherStudent as TeacherStudent
