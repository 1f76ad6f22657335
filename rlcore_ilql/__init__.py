"""Implicit language Q-learning: offline reinforcement learning from samples and what each is worth.

The policy's trunk carries K Q-functions and a V. A sample's return, standardised over the data set (trainer.py), is
received at its last chosen token, or token by token where dense rewards were given. For chosen tokens a_t, with s_t the
tokens before and V' the value at the next chosen token, 0 after the last:

    L_Q    = sum_k sum_t (Q_k(s_t)[a_t] - (r_t + gamma sg V'))^2 / n                      loss.py
    Qbar_t = min_k target Q_k(s_t)[a_t]
    L_V    = sum_t |tau - 1(Qbar_t < V_t)| (Qbar_t - V_t)^2 / n
    L_CQL  = sum_k sum_t -log softmax(Q_k(s_t))[a_t] / n
    L_AWAC = sum_t -sg(exp(beta (Qbar_t - V_t))) log pi(a_t) / n
    L      = L_Q + L_V + c_cql L_CQL + c_awac L_AWAC                                      trainer.py
    target Q <- alpha Q + (1 - alpha) target Q      every `sync_every` optimizer steps    q_heads.py

with n the number of chosen tokens in the batch, on all ranks. Sampling draws from softmax over the top-k of
(log pi + beta_gen (min_k target Q_k - V)) / temperature: `gen.beta`, which has nothing to do with the beta above.

Snell et al. 2022, arXiv:2206.11871; Kostrikov et al. 2021, arXiv:2110.06169 (expectiles); Kumar et al. 2020,
arXiv:2006.04779 (CQL); Nair et al. 2020, arXiv:2006.09359 (AWAC).
"""
