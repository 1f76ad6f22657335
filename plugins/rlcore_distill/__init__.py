"""Generalised knowledge distillation: a student learns the distributions of a teacher, token by token.

With p the teacher, q the policy (the student), both softmax(logits / temperature), and t a chosen token of a row:

    forward_kl   l_t = KL(p || q)                                                     loss.py
    reverse_kl   l_t = KL(q || p)
    jsd          l_t = beta KL(p || m) + (1 - beta) KL(q || m),   m = beta p + (1 - beta) q
    nll          l_t = -log q(token t),   of tokens that the teacher sampled
    L            = sum_t l_t / N                                                       trainer.py

N is the number of chosen tokens in the optimizer step, over all micro-batches and processes. A share `on_policy`
(lambda) of the rows are outputs of the policy itself, through whose sampling no gradient flows; the others are
demonstrations (trainer `distill`) or outputs of the teacher (trainer `distill_prompts`). With `nll` and outputs of the
teacher alone this is sequence-level distillation.

The reward `teacher` of a sampled token is log p(token) - log pi(token), pi the policy that sampled it, or log p(token)
with `subtract_policy: false`, for trainers that learn from rewards.

Agarwal et al. 2024, "On-policy distillation of language models: learning from self-generated mistakes",
arXiv:2306.13649; Kim & Rush 2016, "Sequence-level knowledge distillation", arXiv:1606.07947; Hinton et al. 2015,
arXiv:1503.02531.
"""
