"""A network as an exact polynomial form."""
