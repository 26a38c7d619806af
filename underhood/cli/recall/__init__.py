"""underhood recall: a network that recalls without training, and how well."""

from underhood.cli.recall.command import Recall
