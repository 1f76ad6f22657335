"""Random walks that are learned from vLLM; as a script, an asynchronous run of them that may be killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config

import rlcore

sys.path.append(str(Path(__file__).resolve().parents[4] / "docs" / "examples"))

LEARNERS: dict[str, dict[str, Any]] = {
    "grpo": {"rollouts": 420, "num_generations": 21, "iterations": 2, "minibatches": 3, "optimizer": {"lr": 3e-4}},
    "ppo": {"rollouts": 420, "batch_size": 140, "epochs": 2, "clip": 0.4, "kl_coef": 0.0, "optimizer": {"lr": 5e-4}},
}
"""The options of docs/examples."""
QUIET: dict[str, Any] = {"report": False, "rollouts": "all"}


def imitate(folder: Path) -> Path:
    """Train a GPT-2 with a tied head and heads of 32 values to imitate the walks, and return its folder."""
    import walks

    shape = {"n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 23, "n_positions": 64}
    ids = {"bos_token_id": 21, "eos_token_id": 21, "pad_token_id": 22}
    config = GPT2Config(**shape, **ids, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    result = rlcore.train(
        config, tokenizer=walks.tokenizer(), trainer={"name": "sft", "batch_size": 100, "optimizer": {"lr": 1e-3}},
        samples=walks.samples(), loggers=[], run={"epochs": 15, "root": str(folder), "name": "sft", **QUIET},
    )  # fmt: skip
    return result.run_dir / "model"


def improve(
    folder: Path, trainer: str, sampler: dict[str, Any], *, observers: list[Any], run: dict[str, Any],
    rate: float = 1.0, **options: Any,
) -> Any:  # fmt: skip
    """Improve on the walks of the model in `folder/sft/model`.

    Args:
        folder: the folder of runs.
        trainer: one of `LEARNERS`.
        sampler: options of the sampler `vllm`.
        observers: of the run.
        run: the section `run`.
        rate: factor of the learning rate.
        options: options of the trainer.
    """
    import walks

    given = {"name": trainer, **LEARNERS[trainer], **options}
    optimizer = {"lr": rate * given["optimizer"]["lr"], "betas": [0.9, 0.999], "eps": 1e-5, "scheduler": "linear"}
    return rlcore.train(
        str(folder / "sft" / "model"), trainer={**given, "optimizer": optimizer}, prompts=walks.starts(),
        eval_prompts=walks.eval_prompts(), reward_fn=walks.reward_fn, gen={"max_new_tokens": 9},
        eval={"batch_size": 1000}, checkpoint={"every": 10}, sampler={"name": "vllm", **sampler}, observers=observers,
        run={"root": str(folder), "name": trainer, **QUIET, **run},
    )  # fmt: skip


class Watch:
    """Writes a line for each round, and kills the process in one of them.

    Args:
        file: the lines: the step, the version of the rows, the largest difference of their log-probs from those of
            their weights, the updates of the policy, and of that which the server's last check has compared it with,
            how often the server has loaded weights, the submitted rounds under way, the server's guard, and the number
            of files with weights.
        kill_in: the step after whose round the process is killed; 0: none.
    """

    def __init__(self, file: Path, kill_in: int = 0) -> None:
        self._file, self._kill_in = file, kill_in
        self._policies: dict[int, Any] = {}

    def on_run_start(self, run: Any) -> None:
        self._policies[run.step] = run.models.policy.sampling_copy()
        self._policies.pop(run.step - 3, None)

    def on_step(self, run: Any, metrics: Any) -> None:
        self.on_run_start(run)

    def on_rollout(self, run: Any, batch: Any) -> None:
        sampler = run.sampling.sampler
        (version,) = set(batch["versions"].tolist())
        line = {
            "step": run.step + 1, "version": version, "gap": self._largest_gap(batch),
            "updates": run.models.policy.version, "checked": int(sampler._weights._passed.rpartition("-")[2]),
            "loads": sampler._fleet.num_loads, "under_way": sum(not each.done() for each in sampler._open),
            "guard": sampler._fleet._own._process.pid,
            "files": len(list(sampler._fleet._files.place.rglob("*.safetensors"))),
        }  # fmt: skip
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if line["step"] == self._kill_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def _largest_gap(self, batch: Any) -> float | None:
        """Return how far the sampler's log-probs are from those of the weights that sampled them, by their versions.

        None if the weights are of a step before that from which the run was resumed.
        """
        sampled, mask = batch["sampler_logprobs" if "sampler_logprobs" in batch else "logprobs"], batch.action_mask
        rows = batch["versions"][:, None].expand_as(mask)
        used = batch.columns.get("token_versions", rows)
        own = torch.full_like(sampled, torch.nan)
        for version in set(used[mask].tolist()):
            if version not in self._policies:
                return None
            with torch.no_grad():
                scores = self._policies[version].score(batch, temperature=1.0).logprobs
            own = torch.where(used == version, scores, own)
        return float((own - sampled)[mask].abs().max())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    place = Path(arguments.pop("folder"))
    observer = Watch(place / "watch.jsonl", arguments.pop("kill_in"))
    improve(place, **arguments, observers=[observer])
