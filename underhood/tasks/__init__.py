"""What to compute: the paper's tasks and their closed forms."""

from underhood.tasks.mqar import MQAR, PUBLISHED_TEST, PUBLISHED_TRAINING, Published
from underhood.tasks.multi_head_teacher import MultiHeadTeacher
from underhood.tasks.recall import AssociativeRecall
from underhood.tasks.regression import InContextRegression, gradient_descent_loss, optimal_step
from underhood.tasks.task import Batch, Task
from underhood.tasks.teacher_student import TeacherStudent
