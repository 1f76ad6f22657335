"""Architectures, one for each law that they break."""

NAMES = (
    "FolderAnew", "TokenizerLess", "ReferenceAside", "ReferenceShared", "ReferenceRecording", "ReferenceReloaded",
    "HeadsLost", "LoadsCopies", "Thawing", "SavesStart", "HeadsInside", "TokenizerUnsaved", "ReferenceInside",
    "Unseeded", "Shifted", "PaddingRead", "LogitsAlways", "EntropyInBits", "ValuesEverywhere", "ValuesNever",
    "QHeadsNever", "QEverywhere", "TargetsAnew", "TargetsStale", "TargetsAhead", "TargetsUnsaved", "HighestAdvantage",
    "ValuesMoveLogprobs", "RowsByPlace", "Unused", "Recording", "FreezesNothing", "FreezesAll", "OwnModule",
    "StaleInStep", "OutsideAutocast", "PaddingDecoded", "KeepsOthers", "DecodesOtherValues", "Endless", "Boundless",
    "OtherTokenizer", "ReferenceLeft", "ModuleLeft", "Untempered", "ReferenceUntempered",
    "LoadsUnnoticed", "Versionless", "SyncsUnnoticed",
)  # fmt: skip
COMPONENTS = [
    ("architectures", name, f"wrong_architectures:{name}.build", "rlcore.models.model_options:CausalLMConfig")
    for name in NAMES
] + [
    ("architectures", "mistral", "wrong_architectures:build_mistral", None),
    ("architectures", "t5", "wrong_architectures:build_t5", None),
]
