"""The interfaces of components, by kind; a component implements one by having its methods, not by inheriting."""

from rlcore.protocols.algorithms import (
    OptimizerBuilder,
    RolloutStore,
    Sampler,
    SamplerTraits,
    SchedulerBuilder,
    Trainer,
    TrainerTraits,
)
from rlcore.protocols.learners import (
    Architecture,
    Decoder,
    DecoderRequest,
    DecodeStep,
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
    Environment,
    EnvironmentFactory,
    EpisodePlayer,
    PreviewPipeline,
    PromptPipeline,
    RowStream,
    SamplePipeline,
    SourcePipeline,
    Step,
    Tokenizer,
    Turn,
)
from rlcore.protocols.run_views import (
    Command,
    Divisible,
    Logger,
    ParallelFiles,
    Processes,
    RunView,
    Sharding,
    StagedFiles,
    Uploader,
)

__all__ = [
    "Architecture", "Command", "DecodeStep", "Decoder", "DecoderRequest", "Divisible", "Environment",
    "EnvironmentFactory", "EpisodePlayer", "Head", "HeadBuilder", "Learner", "Logger", "MovingReference",
    "OptimizerBuilder", "ParallelFiles", "Policy", "PreviewPipeline", "Processes", "PromptPipeline", "Restorable",
    "RolloutStore", "RowStream", "RunView", "SamplePipeline", "Sampler", "SamplerTraits", "SchedulerBuilder",
    "SequenceScorer", "Sharding", "SizedVocabulary", "SourcePipeline", "StagedFiles", "SteeringHead", "Step",
    "Tokenizer", "Trainer", "TrainerTraits", "Trunk", "Turn", "Uploader",
]  # fmt: skip
