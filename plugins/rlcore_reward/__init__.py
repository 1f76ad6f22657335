"""Reward models: training on pairs of answers, and use as a reward.

A model with a score head gives each answer one number r, read at its last token. With the score r_c of the preferred
answer of a pair, r_r of the other, and the pair's margin m (0 if unknown):

    delta  = r_c - r_r
    L      = mean [ -log sigmoid(delta - m) + center_coef (r_c + r_r)^2 ]                          loss.py

With `ties: learn`, the model of Rao and Kupper gives answers that are equally good a probability of their own; with
theta = `tie_ratio` and s(x) = sigmoid(x):

    -log s(delta - m - log theta)                                                        one answer is better
    -log [ (theta^2 - 1) s(delta - log theta) s(-delta - log theta) ]                    a tie

A process reward model (process_trainer.py) judges each step of an answer: a token classifier with two labels gives
log P(correct) at the last token of the line break after the step, and the loss is the cross-entropy

    L = mean over steps of -log P(label)

As a reward (reward_model.py), the smallest of these probabilities, their product or the last one counts.

The mean is taken over the pairs of an optimizer step, on all ranks. Both answers of a pair go through the same forward
pass.

Bradley and Terry 1952; Rao and Kupper 1967; Ouyang et al. 2022, arXiv:2203.02155; Touvron et al. 2023, arXiv:2307.09288
(margin); Eisenstein et al. 2023, arXiv:2312.09244, eq. 2 (centring); Lightman et al. 2023, arXiv:2305.20050 (steps).
"""
