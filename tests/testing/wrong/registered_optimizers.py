"""Optimizers and learning-rate schedules, one for each law that they break."""

OPTIMIZERS = ("Regrouping", "Equal", "Ascending", "Remembering", "Decaying", "Undecayed", "Frozen", "Drifting", "Slow")
SCHEDULERS = ("Lopsided", "Late", "Leaping", "Low", "Negative", "Forgetful")
COMPONENTS = [
    *(("optimizers", name, f"wrong_optimizers:{name}", None) for name in OPTIMIZERS),
    *(("schedulers", name, f"wrong_optimizers:{name}", None) for name in SCHEDULERS),
    ("schedulers", "no_warm_up", "wrong_optimizers:no_warm_up", None),
    ("optimizers", "undecaying", "wrong_optimizers:undecaying", None),
]
