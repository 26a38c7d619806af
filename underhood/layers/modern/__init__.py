"""Recurrent layers of today: Mamba-2, delta rules, gated linear attention, RWKV, mLSTM, RG-LRU."""
