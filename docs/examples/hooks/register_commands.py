"""A command that prints the longest demonstrations of a configuration file."""

from rlcore import hookimpl


@hookimpl
def register_commands(register):
    register("lengths", "register_commands:lengths", summary="print the longest demonstrations of a file")


def lengths(parser):
    parser.add_argument("file", metavar="FILE.yaml", help="configuration")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="an option by its path")
    parser.add_argument("--longest", type=int, default=3, metavar="N", help="print the N longest; 3 if absent")
    return run


def run(arguments):
    from pathlib import Path

    from rlcore.config import load_yaml, merge, parse_overrides
    from rlcore.errors import ConfigError

    values = merge(load_yaml(Path(arguments.file)), parse_overrides(arguments.overrides))
    samples = values.get("data", {}).get("samples")
    if not samples:
        raise ConfigError(f"{arguments.file}: data.samples is empty")
    for sample in sorted(samples, key=len, reverse=True)[: arguments.longest]:
        print(f"{len(sample)} characters: {sample}")
    return 0
