"""Second-order training: variable projection with Levenberg–Marquardt, in float64."""
