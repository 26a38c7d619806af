"""Running experiments and judging what they give."""
