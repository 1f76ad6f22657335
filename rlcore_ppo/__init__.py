"""Proximal policy optimisation for language models.

One round samples responses, scores them, and learns from them for a few epochs. For chosen tokens t of a response:

    r_t     = -beta KL_t  (+ the score, at the last chosen token)           trainer.py
    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = delta_t + gamma lam A_{t+1},    R_t = A_t + V_t               rlcore.ops.gae
    from the last token of a turn of an episode to the first of the next, gamma and lam are turn_gamma and turn_lam
    A      <- (A - mean A) / max(std A, min)  over the whole round          rlcore.ops.whiten
    rho_t   = pi(a_t) / pi_old(a_t)
    L_pg    = sum_t max(-A_t rho_t, -A_t clip(rho_t, 1 - eps, 1 + eps)) / n       loss.py
    L_v     = 1/2 sum_t max((V_t - R_t)^2, (clip(V_t, V_old - eps_v, V_old + eps_v) - R_t)^2) / n
    L       = L_pg + c_v L_v - c_e H

with n the number of chosen tokens in the minibatch, on all ranks. pi is
softmax(logits / gen.temperature), also in the KL, the entropy H and the reference: the policy that learns is the one
that samples. pi_old and V_old are the sampler's own log-probs and values where it samples from the policy itself, so
rho = 1 on the first minibatch checks that sampler and trainer agree.

Schulman et al. 2017, arXiv:1707.06347; Ziegler et al. 2019, arXiv:1909.08593; Huang et al. 2024, arXiv:2403.17031.
"""
