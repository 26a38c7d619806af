"""underhood plant: networks with a known attention inside."""

from underhood.cli.plant.command import Plant
