"""What was found: roles, pruning, probes, polynomials, reduction, certificates."""
