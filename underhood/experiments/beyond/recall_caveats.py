"""What a reader must know before comparing compiled networks with trained layers (recall_memory).

Each note says in whose favour a difference is. docs/recall.md has the same in "What is not
compared".
"""

CAVEATS = (
    "What the axis counts: the state as Zoology's code counts it, four bytes a number. Trained "
    "networks have two layers; the first is a short convolution, counted as 3·d_model numbers. "
    "Compiled networks carry only the dk numbers of the last key in its place. With 3·(dk + dv) "
    "counted instead, they recall what the dashed curves say.",
    "Not counted for the trained layers: the short convolutions inside DeltaNet, Gated DeltaNet "
    "and Mamba. RWKV-7's sizes predate a correction that its authors announce: divide by 4 and 16 "
    "for d_model = 128 and 256. Softmax attention keeps every token; its state grows with length.",
    "Trained layers saw K ≤ 64 pairs and at most 256 tokens. K = 128 and 256 are extrapolation for "
    "them, in length too: a layer that is perfect up to 64 pairs and fails beyond has 0.714. "
    "Their accuracies for each K are not published, so the second panel has none.",
    "Compiled codes know the vocabulary, and the decoder knows which tokens are values; trained "
    "layers choose among all 8,192 tokens. The codes know neither K nor the sequence, but the "
    "split into dk and dv is the best by formula for these test sets. Trained points are the best "
    "of four learning rates, chosen on these test sets too.",
    "State is compared, not parameters. Trained layers have one embedding of 64 to 256 numbers per "
    "token, tied to the decoder. Compiled networks have dk + dv numbers per token and a decoder of "
    "its own with dv + 1 per value. At 2,240 numbers of state hash codes are 748 wide, which no "
    "trained layer here is, and dense codes 119, where DeltaNet has 64.",
    "Hash codes use about 11 bits of each number of the state, dense codes about 3. Counted in "
    "bits the two are alike; the axis counts four bytes a number for both, and for trained layers.",
    "The shift register has weights of 1/ε = 10⁶. They are written down, and gradient descent "
    "would hardly find them.",
    "Networks have no latch: random filler writes to their memory, and dense codes lose by it.",
    "The curve of hash codes with the delta rule is a formula; gated RNNs cannot run that rule.",
    "Only the information floor bounds all recurrences. Nothing here says that training should "
    "have reached the compiled points; it says that the state had room.",
)
