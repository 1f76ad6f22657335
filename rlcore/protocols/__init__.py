"""The interfaces of components, by kind; a component implements one by having its methods, not by inheriting."""

from rlcore.protocols.algorithms import OptimizerBuilder, RolloutStore, Sampler, SchedulerBuilder, Trainer
from rlcore.protocols.decoders import Decoder, DecoderRequest, DecodeStep
from rlcore.protocols.environments import Environment, EnvironmentFactory, EpisodePlayer, Step, Turn
from rlcore.protocols.learners import (
    Architecture,
    Head,
    HeadBuilder,
    Learner,
    MovingReference,
    Policy,
    Restorable,
    SequenceScorer,
    SizedVocabulary,
    SteeringHead,
    Trunk,
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
from rlcore.protocols.services import ParallelFiles, Processes, StagedFiles, Uploader
from rlcore.protocols.sharding import Divisible, Sharding

__all__ = [
    "Architecture", "Command", "DecodeStep", "Decoder", "DecoderRequest", "Divisible", "Environment",
    "EnvironmentFactory", "EpisodePlayer", "Head", "HeadBuilder", "Learner", "Logger", "MovingReference",
    "OptimizerBuilder", "ParallelFiles", "Policy", "PreviewPipeline", "Processes", "PromptPipeline", "Restorable",
    "RolloutStore", "RowStream", "RunView", "SamplePipeline", "Sampler", "SchedulerBuilder", "SequenceScorer",
    "Sharding", "SizedVocabulary", "SourcePipeline", "StagedFiles", "SteeringHead", "Step", "Tokenizer", "Trainer",
    "Trunk", "Turn", "Uploader",
]  # fmt: skip
