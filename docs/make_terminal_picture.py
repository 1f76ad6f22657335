"""Draw what a command prints in a terminal, with its colours, as an SVG; the README shows the quick start.

    python docs/make_terminal_picture.py docs/images/terminal.svg
    python docs/make_terminal_picture.py docs/images/chat.svg --printed chat.txt --command "make chat"

The command runs in a pseudo-terminal, so that it prints what it prints to a person. Lines of progress that it has
erased are not drawn. rich draws the picture; it has no fonts or styles from elsewhere.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 96
"""Columns of the terminal: as many as the longest line of the quick start needs."""
QUICKSTART = [sys.executable, str(Path(__file__).resolve().parent / "examples" / "randomwalks.py")]
ERASED = re.compile(r".*\r\x1b\[2K")
"""What a line shows before the terminal erases it."""
FONT_FACES = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Rules by which rich fetches fonts from elsewhere."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the quick start and draw it."""
    parser = argparse.ArgumentParser(description="Draw the output of the quick start as an SVG.")
    parser.add_argument("file", type=Path, help="the picture, such as docs/images/terminal.svg")
    parser.add_argument("--printed", type=Path, help="draw this file, which another command has printed, instead")
    parser.add_argument("--command", default="make quickstart", help="the command above the output")
    arguments = parser.parse_args(argv)
    if arguments.printed is None:
        lines = shortened(printed_by(QUICKSTART))
    else:
        lines = arguments.printed.read_text(encoding="utf-8").splitlines()
    arguments.file.write_text(draw([f"\x1b[1m$ {arguments.command}\x1b[0m", *lines]), encoding="utf-8")


def printed_by(command: Sequence[str]) -> list[str]:
    """Return the lines, with their colours, that a command leaves on a terminal."""
    child, screen = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "OMP_NUM_THREADS": "1"}
        os.execv(command[0], command)  # noqa: S606  the given command
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    output = io.BytesIO()
    try:
        while part := os.read(screen, 65536):
            output.write(part)
    except OSError:  # Linux reports the end of a terminal's program in this way
        pass
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{command} failed:\n{output.getvalue().decode(errors='replace')}")
    lines = output.getvalue().decode().replace("\r\n", "\n").split("\n")
    return [ERASED.sub("", line) for line in lines]


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the beginning and the end of each of the two runs, and of the table, with dots between."""
    plain = [Text.from_ansi(line).plain for line in lines]
    steps = [i for i, line in enumerate(plain) if line.startswith(("step", "eval"))]
    ends = [i for i, line in enumerate(plain) if line.startswith("finished")]
    second = next(i for i in steps if i > ends[0])
    rows = [i for i, line in enumerate(plain) if line.startswith("│")]
    parts = [(steps[0], steps[0] + 3), (ends[0] - 1, ends[0] + 4), (second, second + 4), (ends[1] - 2, rows[0] + 6)]
    kept = [[*lines[start:end], "..."] for start, end in parts]
    return [line for part in kept for line in part][:-1] + list(lines[rows[-1] + 1 :])


def draw(lines: Sequence[str]) -> str:
    """Return an SVG of a terminal that shows lines with colours, those that are too long on several lines."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        text = Text.from_ansi(line)
        for part in text.divide(range(WIDTH, len(text), WIDTH)):
            console.print(part, overflow="crop", no_wrap=True)
    return FONT_FACES.sub("", console.export_svg(title="rlcore"))


if __name__ == "__main__":
    main()
