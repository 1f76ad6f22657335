"""A stream of numbers, each tokenised when its step is due."""

from rlcore.types import Sample


class Numbers:
    epoch = 0.0  # it has no end

    def __init__(self):
        self.is_usable, self.position, self.taken = bool, 0, {}

    def num_batches(self, size):
        return None

    def take_within_pass(self, num):
        self.taken = {}
        while len(self.taken) < num:
            row = self.tokenise(self.position)
            if self.is_usable(row):
                self.taken[self.position] = row
            self.position += 1
        return list(self.taken)

    def __getitem__(self, index):
        return self.taken[index]

    def head(self):
        return [self.tokenise(number) for number in range(4)]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

    def tokenise(self, number):
        return Sample((0, number), (False, True))


stream = Numbers()
stream.is_usable = lambda sample: sample.tokens[1] % 2 == 0
assert [stream[index].tokens for index in stream.take_within_pass(2)] == [(0, 0), (0, 2)]
resumed = Numbers()
resumed.load_state_dict(stream.state_dict())
assert resumed.take_within_pass(1) == [3]
