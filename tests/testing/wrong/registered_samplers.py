"""Samplers, one for each law that they break."""

NAMES = (
    "sorted_rows", "one_short", "unmarked_first", "prompt_marked", "garbage_real", "int_ended", "with_gradient",
    "never_greedy", "positions_of_padding", "tempered_twice", "tempered_not", "top_k_one_more", "top_p_not",
    "top_p_one_short", "first_token_again", "truncated_logprobs", "untempered_logprobs", "shifted_logprobs",
    "shifted_values", "eos_trimmed", "never_ended", "ended_when_cut", "pad_counts_as_end", "own_eos_only",
    "one_too_many", "no_minimum", "stops_in_prompt", "stops_ignored", "global_numbers", "seed_again",
    "needs_generator", "unsorted_batches", "leaves_evaluating", "leaves_frozen", "leaves_no_grad", "beta_ignored",
    "mask_ignored", "mask_transposed", "mask_when_drawing_only", "mask_by_likeliest", "no_beta", "best_of_two",
    "stale_copy", "renewed_once", "closed_for_good", "seeds_ignored", "first_seed_only", "one_seed_for_all",
    "few_seeds",
)  # fmt: skip
COMPONENTS = [("samplers", name, f"wrong_samplers:{name}", None) for name in NAMES]
