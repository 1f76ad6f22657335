"""A command adds arguments to a parser and returns a function that runs it and returns the exit code."""

import argparse


def count(parser):
    parser.add_argument("words", nargs="+", help="words to count")

    def run(arguments):
        print(len(arguments.words), "words")
        return 0

    return run


parser = argparse.ArgumentParser(prog="rlcore count")
run = count(parser)
assert run(parser.parse_args(["one", "two"])) == 0
