"""Many trainings, on one machine or many: studies, work units, their store, and engines."""

from underhood.sweeps.study import Study

__all__ = ["Study"]
