"""Trainers, for the laws that they break; `Right` and `Imitates` break none."""

import re

NAMES = """
Right Imitates MisspeltNeed NeedsMore UnknownBudget CountsNoEpochs NotANumber YieldsTensors YieldsNothing NamesBadly
LeavesALayer Thaws Unseeded ForgetsTheOptimizer YieldsMidRound KeepsCountElsewhere Deaf Jumpy HoldsASet LosesWhatItLoads
TellsNobody TellsTooMuch ComparesWithPad AveragesColumns StacksItself AveragesMeans LooksAtItsShare Uphill Unlearns
CountsHalfItsUpdates Prefers LowersNothing EvaluatesForGood EvaluatesOnTheNext SavesAndMoves StandsOnTriples NamesATuple
Shrinks Rests WrapsItsPolicy Ranks RanksFillers AveragesFillers Misorders RestoresItsOptions
Saturates StepsAnyhow Untempered KeepsNear ShiftsKlRight ShiftsKlLeft
"""

COMPONENTS = [
    (
        "trainers",
        re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(),
        f"wrong_trainers:{name}",
        "wrong_trainers:Options",
    )
    for name in NAMES.split()
]
