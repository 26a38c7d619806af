"""What neurons do: roles, probes, influence."""
