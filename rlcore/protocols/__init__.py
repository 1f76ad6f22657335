"""The interfaces of components, by kind; a component implements one by having its methods, not by inheriting."""

from rlcore.protocols.algorithms import OptimizerBuilder, RolloutStore, Sampler, SchedulerBuilder, Trainer
from rlcore.protocols.decoders import Decoder, DecoderRequest, DecodeStep
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
from rlcore.protocols.pipeline import (
    PreviewPipeline,
    PromptPipeline,
    RowStream,
    SamplePipeline,
    SourcePipeline,
    Tokenizer,
)
from rlcore.protocols.run_views import Command, Logger, RunView
from rlcore.protocols.sharding import Divisible, Sharding

__all__ = [
    "Architecture",
    "Command",
    "DecodeStep",
    "Decoder",
    "DecoderRequest",
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
