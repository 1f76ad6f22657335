"""Keep rollouts on disk between sampling and learning, in Arrow files that `datasets` opens.

`append` writes each batch to its own file; `take` joins the files into one batch whose arrays are memory-mapped, so
that only the pages in use occupy memory.
"""
