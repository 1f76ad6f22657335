"""Group-relative policy optimisation: responses to one prompt are compared with each other, without a critic.

A round samples G responses i to each of P prompts and scores each with R_i. Within a group of G, over the responses
that have a score:

    b_i   = mean R        or   mean of the others                            baseline     advantages.py
    s     = std R + 1e-4  or   std of the whole round + 1e-4   or   1        scale
    A_i   = (R_i - b_i) / s,   0 if all R are equal
    rho_t = pi(a_t) / pi_old(a_t),   exp(mean_t log (pi / pi_old))   or   exp(sum_t ...)    level        loss.py
    l_t   = -min(rho_t A, clip(rho_t, 1 - eps_low, 1 + eps_high) A)          surrogate
            -sg(min(rho_t, cap)) A log pi(a_t)
            -(4 / tau) sigmoid(tau (rho_t - 1)) A
            -sg(w^k exp(lambda (1 - w))) A log pi(a_t),   w = prod_t pi / pi_old
    L     = sum_t l_t / N,   sum_i mean_t l_t / B,   sum_t l_t / B,   sum_t l_t / (B max)     norm
    R_i  <- R_i - beta sum_t log (pi_old / pi_ref)   or   l_t <- l_t + beta KL_t         kl_in

With `credit: turn`, R_i and A_i become those of each turn k, and l_t has the advantage of its token's turn:

    R_ik  = sum_{l >= k} turn_discount^(l - k) r_il,   b_k and s over turn k of the group's episodes

pi is softmax(logits / gen.temperature), the distribution that is sampled from. N is the number of tokens and B that of
responses in one optimizer step, over all micro-batches and ranks. sg stops the gradient. A prompt that occurs twice in
a round has two groups.

Responses without a score (every reward function returned None) are in no baseline and no loss; truncated ones that
`mask_truncated` takes out of the loss stay in the baseline of their group. Neither counts in N and B.

Shao et al. 2024, arXiv:2402.03300 (GRPO); Ahmadian et al. 2024, arXiv:2402.14740 (RLOO); Liu et al. 2025,
arXiv:2503.20783 (Dr. GRPO); Yu et al. 2025, arXiv:2503.14476 (DAPO); Zheng et al. 2025, arXiv:2507.18071 (GSPO);
MiniMax 2025, arXiv:2506.13585 (CISPO); Liu et al. 2026, arXiv:2602.05261 (LUSPO); Shen et al. 2026, arXiv:2602.10693
(VESPO); Feng et al. 2025, arXiv:2505.10978 (GiGPO, for `credit: turn`). The
preset `rloo` is the token loss with leave-one-out advantages, whose gradient on policy is that of the paper up to the
normaliser; with `level: product` and `norm: sequence` it is the loss of TRL's RLOO, one clipped ratio per response. The
log-ratio of a response is cut off at ±20 nats, beyond which it has no gradient, so that no ratio is infinite.
"""
