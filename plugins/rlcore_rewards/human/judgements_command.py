"""The command `rlcore judgements`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rlcore.safe_text import write


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore judgements` to its parser, and return the function that runs it."""
    parser.description = (
        "Show how many judgements people made in a run with the reward `human`, and how far they agree. With an "
        "option, write them as rows of preferences, which the trainers `reward` and `dpo` read, or exchange them with "
        "Argilla."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, or of judgements.jsonl")
    parser.add_argument("--preferences", type=Path, metavar="FILE.jsonl", help="write pairs of completions")
    parser.add_argument("--ties", action="store_true", help="also write pairs with equal scores, with label: tie")
    parser.add_argument("--to-argilla", type=Path, metavar="FILE.json", help="write records, for records.from_json")
    parser.add_argument(
        "--from-argilla", type=Path, metavar="FILE.json", help="add the responses in records that records.to_json wrote"
    )
    parser.add_argument("--low", type=float, default=1.0, help="lowest score of imported records (default: 1)")
    parser.add_argument("--high", type=float, default=5.0, help="highest score of imported records (default: 5)")
    parser.add_argument("--interval", type=float, default=1.0, help="interval of their scores (default: 1)")
    return _run


def _run(arguments: argparse.Namespace) -> int:
    import json

    from rlcore.errors import DataError
    from rlcore_rewards.human.argilla_records import preference_rows, read_records, to_records
    from rlcore_rewards.human.judgement import NAME, append_judgements, in_words, read_judgements

    if not arguments.run.is_dir():
        raise DataError(f"{arguments.run}: is no folder; name the folder of a run with the reward 'human'")
    judgements = read_judgements(arguments.run)
    if arguments.from_argilla is not None:
        scale = (arguments.low, arguments.high, arguments.interval)
        known = {judgement.id for judgement in judgements}
        added = [each for each in read_records(arguments.from_argilla, scale=scale) if each.id not in known]
        if added:
            append_judgements(arguments.run, added)
        judgements += added
        write(f"added {len(added)} judgements to {arguments.run / NAME}")
    if arguments.preferences is not None:
        rows = list(preference_rows(judgements, ties=arguments.ties))
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        arguments.preferences.write_text(text, encoding="utf-8")
        write(f"wrote {len(rows)} preferences to {arguments.preferences}")
    if arguments.to_argilla is not None:
        records = to_records(judgements)
        arguments.to_argilla.write_text(json.dumps(records, indent=1), encoding="utf-8")
        write(f"wrote {len(records)} records to {arguments.to_argilla}")
    for line in in_words(judgements):
        write(line)
    return 0
