"""The paper's results and ours, a file per claim or figure, and the rules that judge them."""
