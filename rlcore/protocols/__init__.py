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
    ArchitectureTraits,
    Decoder,
    DecoderRequest,
    DecodeStep,
    Head,
    HeadBuilder,
    Learner,
    MovingReference,
    Policy,
    PolicyTraits,
    Restorable,
    SequenceScorer,
    SizedVocabulary,
    SteeringHead,
    Trunk,
)
from rlcore.protocols.pipeline import (
    Environment,
    EnvironmentFactory,
    EnvironmentFactoryTraits,
    EnvironmentTraits,
    EpisodePlayer,
    PipelineTraits,
    PreviewPipeline,
    PromptPipeline,
    RewardTraits,
    RowStream,
    SamplePipeline,
    SourcePipeline,
    Step,
    Tokenizer,
    TokenizerTraits,
    Turn,
)
from rlcore.protocols.run_views import (
    Command,
    Divisible,
    Logger,
    LoggerTraits,
    ParallelFiles,
    Processes,
    RunView,
    Sharding,
    StagedFiles,
    Uploader,
)

__all__ = [
    "Architecture", "ArchitectureTraits", "Command", "DecodeStep", "Decoder", "DecoderRequest", "Divisible",
    "Environment", "EnvironmentFactory", "EnvironmentFactoryTraits", "EnvironmentTraits", "EpisodePlayer", "Head",
    "HeadBuilder", "Learner", "Logger", "LoggerTraits", "MovingReference", "OptimizerBuilder", "ParallelFiles",
    "PipelineTraits", "Policy", "PolicyTraits", "PreviewPipeline", "Processes", "PromptPipeline", "Restorable",
    "RewardTraits", "RolloutStore", "RowStream", "RunView", "SamplePipeline", "Sampler", "SamplerTraits",
    "SchedulerBuilder", "SequenceScorer", "Sharding", "SizedVocabulary", "SourcePipeline", "StagedFiles",
    "SteeringHead", "Step", "Tokenizer", "TokenizerTraits", "Trainer", "TrainerTraits", "Trunk", "Turn", "Uploader",
]  # fmt: skip
