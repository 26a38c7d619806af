"""What can compute: linear attention, gated RNNs, LRU, LSTM, GRU, Mamba, the linear recurrence."""

from underhood.common.errors import BadInput as BadInput
from underhood.layers.attention import LinearAttention as LinearAttention, MultiHead as MultiHead
from underhood.layers.base.layer import (
    Layer as Layer,
    parameter_count as parameter_count,
    stream as stream,
)
from underhood.layers.base.recurrence import linear_recurrence as linear_recurrence
from underhood.layers.batches import batch_outputs as batch_outputs, last_outputs as last_outputs
from underhood.layers.files.storage import load as load, save as save
from underhood.layers.gated_rnn import DenseGatedRNN as DenseGatedRNN, GatedRNN as GatedRNN
from underhood.layers.gru import GRU as GRU
from underhood.layers.lru import LRU as LRU, LRUInOut as LRUInOut, LRUInOutMLP as LRUInOutMLP
from underhood.layers.lstm import LSTM as LSTM
from underhood.layers.mamba import Mamba as Mamba
from underhood.layers.mamba_block import MambaBlock as MambaBlock
from underhood.layers.side_gated_rnn import SideGatedRNN as SideGatedRNN
from underhood.layers.stack import Affine as Affine, Stack as Stack
