"""What is compiled into: one file per kind of network."""
