"""What a result file is: format, verdicts, claims, architectures."""
