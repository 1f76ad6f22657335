"""Supervised fine-tuning: L = -sum_t log pi(a_t | tokens before t) / n over the chosen tokens of demonstrations.

Plain text chooses every token after BOS; prompt/output pairs, dialogues and conversations choose outputs only. EOS is
chosen too, so that the policy learns to stop. n counts the chosen tokens of the batch, on all ranks.
"""
