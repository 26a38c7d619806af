"""The fifteen claims, in the paper's order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    name      of its experiment
    title     of its section on the page
    sentence  the claim in one line, as `underhood list` shows it
    text      the claim in two or three sentences, as the page states it
    """

    name: str
    title: str
    sentence: str
    text: str


CLAIMS = (
    Claim(
        "table1",
        "A trained RNN computes its teacher",
        "A trained gated RNN computes its linear-attention teacher's function.",
        "A gated RNN with 100 neurons, trained to imitate one layer of linear attention, computes "
        "the same function up to a loss of 4.97e-8. The attention's key-values and queries can be "
        "read from its neurons, and its output is the attention's polynomial.",
    ),
    Claim(
        "figure2",
        "The weights show the construction",
        "After pruning, the learned weights show the compact construction's blocks.",
        "After pruning, 14 of 100 neurons stay: 10 with λ = 1 that hold key-values and 4 with "
        "λ = 0 that hold the query. The weights between them have the blocks of the compact "
        "construction, although nothing in the training asks for them.",
    ),
    Claim(
        "figure3a",
        "Mild overparametrisation is enough",
        "Identification needs mild overparametrisation.",
        "The loss falls sharply where theory first allows an exact solution, at d(d+1)/2 + d "
        "neurons. With about twice as many every student identifies its teacher.",
    ),
    Claim(
        "figure3b",
        "Low-rank teachers take fewer neurons",
        "Low-rank teachers are learned with fewer neurons.",
        "A teacher whose value and key-query matrices have rank r is learned by r(r + 1) neurons. "
        "The student is not told the rank.",
    ),
    Claim(
        "figure3c",
        "In-context regression takes as many as theory says",
        "In-context regression needs about as many neurons as the low-rank construction.",
        "Trained on in-context linear regression, students reach the loss of one optimal gradient "
        "step from about 12 neurons on. That is the size of the low-rank construction for this "
        "task.",
    ),
    Claim(
        "figure4a",
        "Who can mimic attention?",
        "Gated RNNs mimic attention best, then LRUs with gates; LSTMs and GRUs do not.",
        "Gated RNNs, diagonal or dense, imitate attention far better than LRUs with gates on both "
        "sides, these better than plain LRUs, and these better than LSTMs and GRUs. An MLP in "
        "place of the gates makes an LRU worse.",
    ),
    Claim(
        "figure4b",
        "Who learns in context better than one gradient step?",
        "Nonlinear RNNs learn in context better than one gradient step; the GRU is best.",
        "On regression tasks of twice the variance seen in training, nonlinear RNNs with enough "
        "parameters beat one optimal step of gradient descent, and the GRU is the best of them. "
        "Gates on both sides make an LRU far better; an MLP in their place does not.",
    ),
    Claim(
        "figure6",
        "Every architecture, both tasks",
        "Training and validation loss of all architectures against parameters.",
        "The architectures compared at their numbers of parameters, in training and in "
        "validation. Of the three LRUs the one with gates on both sides is the best on both tasks.",
    ),
    Claim(
        "table2",
        "The regression RNN is one step of gradient descent",
        "The regression RNN implements one step of gradient descent.",
        "The polynomial that a trained student computes has three coefficients of size 6.8e-2 "
        "where one optimal gradient step has 6.76e-2. All others together have norm 1.35e-3.",
    ),
    Claim(
        "table3",
        "What every architecture needs",
        "Layers that each kind of network needs to implement Eq. 2 and attention.",
        "How many layers of each architecture implement a gated RNN, and attention, exactly. The "
        "paper writes – for GRUs and for LRUs with an MLP: it says that they cannot.",
    ),
    Claim(
        "lstm_weights",
        "LSTMs that are attention",
        "The two LSTM weight tables: one layer is attention, two are a gated RNN.",
        "Two tables of weights turn one LSTM layer into linear attention and two into a gated "
        "RNN. The paper ignores the nonlinearities; here they stay, and their error vanishes with "
        "the scale ε.",
    ),
    Claim(
        "reverse",
        "Attention that is an RNN",
        "Attention with decay and biases implements linear RNNs and gated RNNs.",
        "Linear attention with a decay per row and biases implements a diagonal linear RNN, and "
        "also the gates. So the two can be turned into each other.",
    ),
    Claim(
        "optimal_step",
        "The best single gradient step",
        "The best learning rate of one gradient step is 1/(σₓ²(n + dₓ − 1/5)).",
        "One step of gradient descent on the in-context loss is best at "
        "η* = 1/(σₓ²(n + dₓ − 1/5)). For twelve pairs in three dimensions that is 0.0676, with a "
        "loss of 0.0947.",
    ),
    Claim(
        "recall_gated",
        "Recall with fewer neurons than attention",
        "Associative recall with output gating: one neuron per y, smaller than attention.",
        "In associative recall with gates on both sides, students find a solution smaller than "
        "attention: one number per symbol is stored in one neuron per answer. The scores are "
        "minus the squared difference between the stored number and the query's.",
    ),
    Claim(
        "recall_side",
        "Recall with side gating",
        "Associative recall with side gating: attention with a second, negative peak.",
        "With side gating the weights become [A | 0] and [0 | B], and the readout is Bᵀ. Every "
        "pair adds a matrix of rank one to the memory, with a positive peak where attention has "
        "it and a negative one elsewhere.",
    ),
)
