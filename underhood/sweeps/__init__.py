"""Many trainings, on one machine or many: studies, work units, their store, and engines."""

from underhood.sweeps.study import Study
from underhood.sweeps.sweeping import Swept, sweep

__all__ = ["Study", "Swept", "sweep"]
