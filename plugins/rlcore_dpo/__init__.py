"""Direct preference optimisation and its relatives: learn from pairs of answers, without sampling and without rewards.

A row has a prompt x, a chosen answer y_c and a rejected answer y_r. With log pi(y) the sum of the log-probs of an
answer's tokens, each compared with a reference that does not train:

    c = log pi(y_c) - log ref(y_c)    r = log pi(y_r) - log ref(y_r)    pair_objective.py
    L = mean over pairs of f(c, r) + sft_coef * mean over tokens of y_c of -log pi(token)

f is one of the functions in loss.py, or a weighted sum of several; `sigmoid` is -log sigmoid(beta (c - r)). The mean is
over the pairs of the whole optimizer step, on all ranks. `cpo`, `simpo` and `orpo` compare log pi itself and need no
reference.

The reference is the policy before training. Its log-probs are computed once, before the first step, and kept in
checkpoints and on disk for later runs (reference.py), so that no second copy of the weights is needed. `kto`
(pair_objective.py) learns from single answers with a verdict and compares them with the mean log-ratio of mismatched
answers, which no table can hold.

Rafailov et al. 2023, "Direct preference optimization: your language model is secretly a reward model",
arXiv:2305.18290; the sources of the other losses are in loss.py.
"""
