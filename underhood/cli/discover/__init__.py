"""underhood discover: a random student becomes its teacher's attention."""

from underhood.cli.discover.command import Discover
