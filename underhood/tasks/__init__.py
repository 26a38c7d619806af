"""What to compute: the paper's tasks and their closed forms."""

from underhood.tasks.recall import AssociativeRecall as AssociativeRecall
from underhood.tasks.regression import InContextRegression as InContextRegression
from underhood.tasks.regression import gradient_descent_loss as gradient_descent_loss
from underhood.tasks.regression import optimal_step as optimal_step
from underhood.tasks.task import Batch as Batch
from underhood.tasks.task import Task as Task
from underhood.tasks.teacher_student import TeacherStudent as TeacherStudent
