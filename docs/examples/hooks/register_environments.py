"""A game in which the policy counts: it wins if its turn is the number after the one that it reads."""

from rlcore import hookimpl


@hookimpl
def register_environments(register):
    register("counting", "register_environments:Counting", summary="write the next number, three times")


class Counting:
    max_turns = 3
    example_turns = ("2", "7", "a")

    def reset(self, row, *, seed):
        self.number = seed % 10
        return str(self.number)

    def step(self, turn):
        is_right = turn.text.strip() == str(self.number + 1)
        self.number += 1
        return str(self.number), float(is_right)
