"""Reports: one self-contained HTML page of one run or several, health verdicts, comparisons, and notebook output."""
