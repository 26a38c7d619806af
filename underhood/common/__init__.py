"""What everyone stands on: errors, number checks, files, float64, least squares."""
