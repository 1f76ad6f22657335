"""What a run calls of a player, shown with that of rlcore-environments and without a run."""

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore_environments.player import Player
from rlcore_transformers.data.pipelines import PROMPTS
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


class Parrot:
    max_turns = 2

    def reset(self, row, *, seed):
        return " Hello."

    def step(self, turn):
        return turn.text or "?", 0.5


player, config = Player(Parrot, TrainConfig()), TrainConfig()
policy = build_causal_lm("gpt2", CausalLMConfig())
read = player.pipeline(PROMPTS)
prompts = read(["Say something:"], policy.tokenizer, config.data, max_length=policy.max_length)
assert prompts[0].text.index("Say something") < prompts[0].text.index("Hello.")
episodes = player.sampler(sample)(policy, prompts, SamplingConfig(max_new_tokens=3), row_seeds=[1])
assert len(episodes.arguments["turns"][0]) == 2
assert float(episodes["rewards"].sum()) == 1.0
player.close()
