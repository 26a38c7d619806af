"""What can compute: linear attention, gated RNNs, LRU, LSTM, GRU, Mamba, the linear recurrence."""

from underhood.layers.attention import LinearAttention, MultiHead
from underhood.layers.base.layer import Layer, parameter_count, stream
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.batches import batch_outputs, last_outputs
from underhood.layers.files import load, save
from underhood.layers.gated_rnn import DenseGatedRNN, GatedRNN, SideGatedRNN
from underhood.layers.gru import GRU
from underhood.layers.lru import LRU, LRUInOut, LRUInOutMLP
from underhood.layers.lstm import LSTM
from underhood.layers.mamba import Mamba, MambaBlock
from underhood.layers.modern.gated_deltanet import KDA, DeltaNet, GatedDeltaNet
from underhood.layers.modern.gla import GLA, HGRN2, Lightning, RetNet
from underhood.layers.modern.jamba import JambaBlock
from underhood.layers.modern.mamba2 import Mamba2
from underhood.layers.modern.min_gru import MinGRU
from underhood.layers.modern.mlstm import MLSTM
from underhood.layers.modern.rg_lru import RGLRU
from underhood.layers.modern.rwkv6 import RWKV6
from underhood.layers.modern.rwkv7 import RWKV7
from underhood.layers.stack import Affine, Stack
