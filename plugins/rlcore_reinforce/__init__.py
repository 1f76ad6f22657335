"""REINFORCE with a baseline: the plainest policy gradient, one optimizer step a round, on policy throughout.

A round samples N responses i and scores each with R_i, the sum of its rewards. Of the chosen tokens t of response i:

    b_i = sum_{j != i} R_j / (N - 1)           what the others of the round got        loss.py
    A_i = R_i - b_i
    L   = -sum_{i,t} A_i log pi(a_{i,t} | tokens before t) / n                         loss.py, trainer.py

with n the number of chosen tokens in the round, on all ranks. Its gradient estimates that of the expected reward as
long as b_i does not depend on response i. The plain mean of the round does, for R_i is one of its terms: it makes each
advantage, and so the gradient, (N - 1) / N of what it should be. Leaving R_i out costs nothing and puts that right, so
the others' mean it is. A reward that every response gets cancels.

Responses must come from the policy itself: drawn with another temperature, top-k or top-p (`gen`), the gradient is no
longer that of the expected reward.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning"; the
baseline as in Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", taken over a round of prompts.
"""
