"""The fifteen claims, in the paper's order: two sentences each, as the page states them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A claim of the paper."""

    name: str
    title: str
    claim: str


SECTIONS = (
    Section(
        "table1",
        "A trained RNN computes its teacher",
        "A gated RNN with 100 neurons, trained to imitate one layer of linear attention, computes "
        "the same function up to a loss of 4.97e-8. The attention's key-values and queries can be "
        "read from its neurons, and its output is the attention's polynomial.",
    ),
    Section(
        "figure2",
        "The weights show the construction",
        "After pruning, 14 of 100 neurons stay: 10 with λ = 1 that hold key-values and 4 with "
        "λ = 0 that hold the query. The weights between them have the blocks of the compact "
        "construction, which gradient descent was never told of.",
    ),
    Section(
        "figure3a",
        "Mild overparametrisation is enough",
        "The loss falls sharply where theory first allows an exact solution, at d(d+1)/2 + d "
        "neurons. With about twice as many every student identifies its teacher.",
    ),
    Section(
        "figure3b",
        "Low-rank teachers take fewer neurons",
        "A teacher whose value and key-query matrices have rank r is learned by r(r + 1) neurons. "
        "The student is not told the rank.",
    ),
    Section(
        "figure3c",
        "In-context regression takes as many as theory says",
        "Trained on in-context linear regression, students reach the loss of one optimal gradient "
        "step from about 12 neurons on. That is the size of the low-rank construction for this "
        "task.",
    ),
    Section(
        "figure4a",
        "Who can mimic attention?",
        "Gated RNNs, diagonal or dense, imitate attention far better than LRUs with gates on both "
        "sides, these better than plain LRUs, and these better than LSTMs and GRUs. An MLP in "
        "place of the gates makes it worse.",
    ),
    Section(
        "figure4b",
        "Who learns in context better than one gradient step?",
        "On regression tasks of twice the variance seen in training, nonlinear RNNs with enough "
        "parameters beat one optimal step of gradient descent, and the GRU is the best of them. "
        "Gates on both sides make an LRU far better; an MLP in their place does not.",
    ),
    Section(
        "figure6",
        "Every architecture, both tasks",
        "The comparison of architectures against their numbers of parameters, in training and in "
        "validation. Of the three LRUs the one with gates on both sides is the best on both tasks.",
    ),
    Section(
        "table2",
        "The regression RNN is one step of gradient descent",
        "The polynomial that a trained student computes has three coefficients of size 6.8e-2 "
        "where one optimal gradient step has 6.76e-2. All others together have norm 1.35e-3.",
    ),
    Section(
        "table3",
        "What every architecture needs",
        "How many layers of each architecture implement a gated RNN, and attention, exactly. The "
        "paper says that GRUs, and LRUs with an MLP, cannot, which is what – stands for.",
    ),
    Section(
        "lstm_weights",
        "LSTMs that are attention",
        "Two tables of weights turn one LSTM layer into linear attention and two into a gated "
        "RNN. The paper ignores the nonlinearities; here they stay, and their error vanishes with "
        "the scale ε.",
    ),
    Section(
        "reverse",
        "Attention that is an RNN",
        "Linear attention with a decay per row and biases implements a diagonal linear RNN, and "
        "also the gates. So the two can be turned into each other.",
    ),
    Section(
        "optimal_step",
        "The best single gradient step",
        "One step of gradient descent on the in-context loss is best at "
        "η* = 1/(σₓ²(n + dₓ − 1/5)). For twelve pairs in three dimensions that is 0.0676, with a "
        "loss of 0.0947.",
    ),
    Section(
        "recall_gated",
        "Recall with fewer neurons than attention",
        "In associative recall with gates on both sides, students find a solution smaller than "
        "attention: one number per symbol is stored in one neuron per answer. The scores are "
        "minus the squared difference between the stored number and the query's.",
    ),
    Section(
        "recall_side",
        "Recall with side gating",
        "With side gating the weights become [A | 0] and [0 | B], and the readout is Bᵀ. Every "
        "pair adds a matrix of rank one to the memory, with a positive peak where attention has "
        "it and a negative one elsewhere.",
    ),
)
