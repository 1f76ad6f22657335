"""Commands that break one law each, and right ones."""


def right(parser):
    parser.add_argument("file", help="what is read; 100 %% of it")
    parser.add_argument("--top", type=int, default=3, help="rows")
    return run


def bare(parser):
    parser.description = "Take nothing."
    return run


def run(arguments):
    return 0


def silent(parser):
    parser.add_argument("file", help="what is read")


def reading(parser):
    import torch

    parser.add_argument("--device", choices=[torch.device("cpu").type], help="where")
    return run


def leaving(parser):
    parser.print_help = lambda: parser.exit(3)
    return run


def unexplained(parser):
    parser.add_argument("--top", type=int, default=3)
    return run


def percent(parser):
    parser.add_argument("--top", type=int, default=3, help="100 % of them")
    return run


def swallowing(parser):
    parser.prefix_chars = "+"
    parser.add_argument("rest", nargs="*", help="what it passes on")
    return run


def scolding(parser):
    parser.error = lambda message: parser.exit(1, message)
    return run
