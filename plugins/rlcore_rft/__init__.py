"""Reward-ranked fine-tuning: imitate the best of the policy's own responses, with a rising threshold.

A round first grows, then improves K times. To grow, G responses to each prompt x are sampled and scored; they join the
history, the responses of the last rounds. Improve step k = 0 .. K - 1 imitates the best of the history:

    p_k    = start + k (end - start) / (K - 1),    start if K = 1                     loss.py
    tau_k(x) = the p_k-quantile of the scores in the history of x,
               no higher than highest - 0.001, no lower than lowest + 0.001,          loss.py
               with lowest and highest among the scores of all prompts
    D_k    = { (x, y) in the history : score(x, y) >= tau_k(x) }, duplicates dropped  trainer.py
    L      = -sum_{(x, y) in a minibatch of D_k, t} log pi(y_t | x, tokens before t) / n

with pi = softmax(logits / gen.temperature), the distribution that was sampled from, and one pass over D_k in
minibatches, t running over the tokens that were sampled, and n their number in the minibatch on all ranks. A response
counts in the quantile as often as it was sampled, and is learned from once.

The bounds matter where many scores are equal, as with rewards of 0 and 1. A prompt whose responses all failed has a
quantile of `lowest`, and without the lower bound all of its failures would be imitated. The upper one lets the best
through though their quantile was rounded.

Gulcehre et al. 2023, "Reinforced Self-Training (ReST) for Language Modeling", arXiv:2308.08998; per-prompt quantiles
and their bounds after trlX.
"""
