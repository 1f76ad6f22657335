"""REINFORCE with a leave-one-out baseline: on-policy policy gradient with one optimizer step per round.

A round samples N responses i and scores each with R_i, the sum of its rewards. Of the chosen tokens t of response i:

    b_i = sum_{j != i} R_j / (N - 1)           mean score of the other responses       loss.py
    A_i = R_i - b_i
    L   = -sum_{i,t} A_i log pi(a_{i,t} | tokens before t) / n                         loss.py, trainer.py

with n the number of chosen tokens in the round, on all ranks. The gradient of -L estimates that of the expected
reward if b_i does not depend on response i. The mean over the whole round contains R_i and would scale each advantage,
and so the gradient, by (N - 1) / N; the mean of the others does not. A constant added to all rewards cancels.

pi is softmax(logits / gen.temperature), the distribution that is sampled from. Responses must be sampled from pi: with
top-k, top-p, a minimum length or a mask the gradient is not that of the expected reward, and a warning names these.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning"; the
baseline as in Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", taken over a round of prompts.
"""
