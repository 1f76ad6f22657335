"""Learners of a kind of their own, one for each law that they break."""

NAMES = ("Toy", "ForgetsBias", "Replaces", "Unnoticed", "OtherExport", "Frozen", "Remains", "Unseeded")
COMPONENTS = [("architectures", f"learns-{name}", f"wrong_learners:{name}.build", None) for name in NAMES]
