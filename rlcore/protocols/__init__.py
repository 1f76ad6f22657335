"""The interfaces of components, by kind; a component implements one by having its methods, not by inheriting."""

from rlcore.protocols.algorithms import RolloutStore, Sampler, Trainer
from rlcore.protocols.decoders import Decoder, DecodeStep
from rlcore.protocols.learners import (
    Architecture,
    Learner,
    MovingReference,
    Policy,
    QPolicy,
    Restorable,
    SequenceScorer,
    SizedVocabulary,
)
from rlcore.protocols.optimizer_builders import OptimizerBuilder, SchedulerBuilder
from rlcore.protocols.pipeline import (
    PreviewPipeline,
    PromptPipeline,
    RowStream,
    SamplePipeline,
    SourcePipeline,
)
from rlcore.protocols.run_views import Command, Logger, RunView
from rlcore.protocols.sharding import Divisible, Sharding
from rlcore.protocols.tokenizer import Tokenizer

__all__ = [
    "Architecture",
    "Command",
    "DecodeStep",
    "Decoder",
    "Divisible",
    "Learner",
    "Logger",
    "MovingReference",
    "OptimizerBuilder",
    "Policy",
    "PreviewPipeline",
    "PromptPipeline",
    "QPolicy",
    "Restorable",
    "RolloutStore",
    "RowStream",
    "RunView",
    "SamplePipeline",
    "Sampler",
    "SchedulerBuilder",
    "SequenceScorer",
    "Sharding",
    "SizedVocabulary",
    "SourcePipeline",
    "Tokenizer",
    "Trainer",
]
