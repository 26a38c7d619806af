"""Names of the architectures that Figures 4 and 6 compare.

Result files name an architecture by its place in ARCHITECTURE_NAMES, so the order is fixed.
"""

GATED, DENSE = "gated RNN", "gated RNN, dense"
LRU_PLAIN, LRU_IN_OUT, LRU_MLP = "LRU", "LRU In+Out", "LRU In+Out MLP"
LSTM_NAME, GRU_NAME = "LSTM", "GRU"

ARCHITECTURE_NAMES = (GATED, DENSE, LRU_PLAIN, LRU_IN_OUT, LRU_MLP, LSTM_NAME, GRU_NAME)
