"""underhood grade: how well a method read planted networks."""

from underhood.cli.grade.command import Grade
