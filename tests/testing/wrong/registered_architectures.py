"""Architectures, one for each law that they break."""

NAMES = {
    "wrong_architectures": (
        "FolderAnew", "TokenizerLess", "ReferenceAside", "ReferenceShared", "ReferenceRecording",
        "ReferenceReloaded", "HeadsLost", "LoadsCopies", "Thawing", "LoadsUnnoticed", "Versionless",
        "SavesStart", "HeadsInside", "TokenizerUnsaved", "ReferenceInside", "Unseeded", "FreezesNothing",
        "FreezesAll", "Boundless", "OtherTokenizer", "ReferenceLeft", "ModuleLeft",
    ),
    "wrong_policy_scores": (
        "Shifted", "PaddingRead", "LogitsAlways", "EntropyInBits", "ValuesEverywhere", "ValuesNever",
        "ValuesMoveLogprobs", "Untempered", "ReferenceUntempered", "RowsByPlace", "Unused", "Recording",
        "OwnModule", "StaleInStep",
    ),
    "wrong_decoders": (
        "OutsideAutocast", "PaddingDecoded", "KeepsOthers", "DecodesOtherValues", "Endless", "HighestAdvantage",
    ),
    "wrong_heads": (
        "HeadsNever", "HeadsEverywhere", "HeadsOfOthers", "HeadsFrozen", "HeadsUnsaved", "SteersNever",
    ),
}  # fmt: skip
COMPONENTS = [
    ("architectures", name, f"{module}:{name}.build", "rlcore_transformers.models.model_options:CausalLMConfig")
    for module, names in NAMES.items()
    for name in names
] + [
    ("architectures", "mistral", "wrong_architectures:build_mistral", None),
    ("architectures", "t5", "wrong_architectures:build_t5", None),
    ("architectures", "recurrent", "plain_torch:build_recurrent", None),
    ("architectures", "Hasty", "plain_torch:build_hasty", None),
    ("architectures", "Unreferenced", "plain_torch:build_unreferenced", None),
]
