"""The claims of the paper, a file per claim or figure."""
