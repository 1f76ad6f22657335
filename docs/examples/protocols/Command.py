"""A command is a function of a parser; the function it returns runs it and gives the exit code."""

import argparse


def count(parser):
    parser.add_argument("words", nargs="+", help="what is counted")

    def run(arguments):
        print(len(arguments.words), "words")
        return 0

    return run


parser = argparse.ArgumentParser(prog="rlcore count")
run = count(parser)
assert run(parser.parse_args(["one", "two"])) == 0
