"""A reward model that sees as a reward function; needs the extra `reward`, the package rlcore-reward."""
