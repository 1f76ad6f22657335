"""The options of ILQL; light, so that `rlcore show ilql` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from rlcore.config import config, option
from rlcore.settings import BatchOptions, OptimizerConfig

if TYPE_CHECKING:
    from rlcore.protocols import Trunk
    from rlcore_ilql.q_heads import QHeads

SNELL = "Snell et al. 2022, arXiv:2206.11871"
SNELL_CODE = f"{SNELL}, published code"
KOSTRIKOV = "Kostrikov et al. 2021, arXiv:2110.06169"
KUMAR = "Kumar et al. 2020, arXiv:2006.04779"
NAIR = "Nair et al. 2020, arXiv:2006.09359"


@config
class ILQLOptimizer(OptimizerConfig):
    """The optimizer of ILQL; `lr` depends on the model, and other options have their usual defaults."""

    lr: float | None = option(
        None, "learning rate after warm-up; null: 5e-5 for 124e6 parameters or more, and larger for smaller models "
        "and adapters (docs/training.md)", gt=0, lt=float("inf"), source=f"trlX, for GPT-2; {SNELL_CODE}: 1e-5, 1e-4",
    )  # fmt: skip
    published = (5e-5, 124e6)


@config
class ILQLConfig(BatchOptions):
    """Implicit language Q-learning: learn Q and V from samples with rewards, and steer sampling by them."""

    batch_size: int = option(32, "samples of one optimizer step, on all ranks together", ge=1, unit="sequences")
    optimizer: OptimizerConfig = option(ILQLOptimizer(), "optimizer of policy, V and Q together")
    dropout: bool = option(
        False, "dropout as in the model's configuration; Q and V then take its noise for variance of the data"
    )

    gamma: float = option(0.99, "discount per chosen token", ge=0, le=1, source=SNELL)
    tau: float = option(
        0.7,
        "expectile of Q that V estimates: .5 is the mean over the data, near 1 the best action in it",
        gt=0,
        lt=1,
        source=KOSTRIKOV,
    )
    cql_coef: float = option(
        0.1, "weight of the CQL term, which keeps Q low for tokens that are not in the data", ge=0, source=KUMAR
    )
    awac_coef: float = option(1.0, "weight of the AWAC term, which trains the policy itself", ge=0, source=NAIR)
    awac_beta: float = option(
        0.0, "tokens are imitated with weight exp(beta * advantage); 0 weighs all alike (sampling has gen.beta, "
        "16 by default)", ge=0, source=NAIR,
    )  # fmt: skip
    num_q_heads: int = option(2, "number of Q-heads; targets use the minimum over them", ge=1, source=SNELL)
    target_rate: float = option(
        0.005, "Polyak rate: at a sync, target = rate * Q + (1 - rate) * target", gt=0, le=1, source=SNELL_CODE
    )
    sync_every: int = option(
        1, "optimizer steps between two syncs of the target Q-heads", ge=1, unit="steps", source=SNELL_CODE
    )
    standardise_rewards: bool = option(
        True,
        "standardise the returns of the samples to mean 0 and standard deviation 1; dense rewards are only divided",
    )


def workload(config: ILQLConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes and heads of a run with these options, for `rlcore plan`."""
    return {"value_head": True, "heads": q_heads(config.num_q_heads)}


@attrs.frozen
class QHeadsBuilder:
    """Builds `num` Q-heads (`rlcore.protocols.HeadBuilder`)."""

    num: int

    def __call__(self, trunk: Trunk) -> QHeads:
        """Return new heads on a trunk."""
        from rlcore_ilql.q_heads import QHeads

        return QHeads(trunk, num=self.num)


def q_heads(num: int) -> dict[str, QHeadsBuilder]:
    """Return what an architecture's argument `heads` takes to build `num` Q-heads; 0: none."""
    return {"q_heads": QHeadsBuilder(num)} if num else {}
