"""Fuzzing of everything that comes from outside: files, messages, and the text of queries.

What belongs here: making bad input (`mutation`), running one target over it with limits (`engine`),
and the targets (`targets`). What does not: the product's parsers, and tests of known attacks.
"""
